//! Who may touch which page?
//!
//! `vdk-iommu` decides which memory a device reaches and at which address, on top of the
//! [`DmaMapper`](vdk_hal::dma::DmaMapper) contract of the HAL.
//!
//! - [`soft`]: a software IOMMU for emulated devices.

#![forbid(unsafe_code)]

pub mod soft;
