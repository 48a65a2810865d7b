//! Intel I/OAT, the DMA engine of Xeon chipsets.
