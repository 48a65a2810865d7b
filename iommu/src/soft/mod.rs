//! A software IOMMU for emulated devices.
