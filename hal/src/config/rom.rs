//! The images in an expansion ROM.
//!
//! See PCI Firmware 3.0 §5 "PCI Expansion ROMs".

use thiserror::Error;

/// One image of an expansion ROM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RomImage<'a> {
    /// Where it begins in the ROM.
    pub offset: usize,
    /// Its bytes, header included: whole units of 512 bytes.
    pub bytes: &'a [u8],
    /// The vendor ID of the function that it is for.
    pub vendor: u16,
    /// The device ID of the function that it is for.
    pub device: u16,
    /// Base class, subclass and programming interface in 24 bits.
    pub class: u32,
    /// What kind of code it holds.
    pub code_type: CodeType,
    /// It is the last image.
    pub last: bool,
}

/// The kind of code in an image. Numbers without a meaning are carried as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeType(pub u8);

impl CodeType {
    /// For a BIOS.
    pub const X86: Self = Self(0);
    /// For Open Firmware.
    pub const OPEN_FIRMWARE: Self = Self(1);
    /// For PA-RISC machines.
    pub const PA_RISC: Self = Self(2);
    /// For UEFI.
    pub const UEFI: Self = Self(3);
}

/// Why the walk over a ROM ended before its last image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed ROM image at {offset:#x}: {what}")]
pub struct RomError {
    /// Where the image begins.
    pub offset: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// The images of a ROM, in order. The first fault is the last item: an image of length
/// zero, or longer than the ROM, has no successor that could be found.
#[must_use]
pub fn rom_images(rom: &[u8]) -> RomImages<'_> {
    RomImages { rom, next: Some(0) }
}

/// The iterator of [`rom_images`].
#[derive(Clone, Debug)]
pub struct RomImages<'a> {
    rom: &'a [u8],
    next: Option<usize>,
}

impl<'a> Iterator for RomImages<'a> {
    type Item = Result<RomImage<'a>, RomError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.next.take()?;
        let image = image_at(self.rom, offset).map_err(|what| RomError { offset, what });
        if let Ok(image) = &image
            && !image.last
        {
            // An image is not empty, so that the walk moves forward.
            self.next = Some(offset + image.bytes.len());
        }
        Some(image)
    }
}

fn image_at(rom: &[u8], offset: usize) -> Result<RomImage<'_>, &'static str> {
    let rest = rom.get(offset..).unwrap_or_default();
    if rest.first_chunk() != Some(&[0x55, 0xaa]) {
        return Err("the signature 0x55 0xaa is missing");
    }
    let pointer = u16_at(rest, 0x18).ok_or("the header is cut off")?;
    let structure = rest.get(usize::from(pointer)..).unwrap_or_default();
    if structure.first_chunk() != Some(b"PCIR") {
        return Err("the data structure PCIR is missing");
    }
    let cut_off = "the data structure is cut off";
    let [interface, subclass, class] = *structure.get(0x0d..).and_then(|s| s.first_chunk()).ok_or(cut_off)?;
    let units = usize::from(u16_at(structure, 0x10).ok_or(cut_off)?);
    let [code_type, indicator] = *structure.get(0x14..).and_then(|s| s.first_chunk()).ok_or(cut_off)?;
    if units == 0 {
        return Err("the image has no length");
    }
    Ok(RomImage {
        offset,
        bytes: rest.get(..units * 512).ok_or("the image is longer than the ROM")?,
        vendor: u16_at(structure, 4).ok_or(cut_off)?,
        device: u16_at(structure, 6).ok_or(cut_off)?,
        class: u32::from_be_bytes([0, class, subclass, interface]),
        code_type: CodeType(code_type),
        last: indicator & 0x80 != 0,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(units: u16, code_type: u8, last: bool) -> Vec<u8> {
        let mut bytes = vec![0; 512 * usize::from(units.max(1))];
        bytes[..2].copy_from_slice(&[0x55, 0xaa]);
        bytes[0x18] = 0x1c;
        let structure = &mut bytes[0x1c..];
        structure[..8].copy_from_slice(b"PCIR\x34\x12\x78\x56");
        structure[0x0d..0x10].copy_from_slice(&[0x02, 0x08, 0x01]);
        structure[0x10..0x12].copy_from_slice(&units.to_le_bytes());
        structure[0x14] = code_type;
        structure[0x15] = if last { 0x80 } else { 0 };
        bytes
    }

    fn error(rom: &[u8]) -> RomError {
        let items: Vec<_> = rom_images(rom).collect();
        assert!(items.iter().rev().skip(1).all(Result::is_ok), "only the last item is an error");
        items.last().unwrap().unwrap_err()
    }

    #[test]
    fn two_images_are_walked_and_what_follows_the_last_is_ignored() {
        let rom = [image(2, 0, false), image(1, 3, true), vec![0xff; 512]].concat();
        let images: Vec<_> = rom_images(&rom).map(Result::unwrap).collect();
        assert_eq!(
            images.iter().map(|i| (i.offset, i.bytes.len())).collect::<Vec<_>>(),
            [(0, 1024), (1024, 512)]
        );
        assert_eq!((images[0].code_type, images[1].code_type), (CodeType::X86, CodeType::UEFI));
        assert_eq!((images[0].vendor, images[0].device, images[0].class), (0x1234, 0x5678, 0x01_08_02));
    }

    #[test]
    fn faults_end_the_walk_with_an_error() {
        assert_eq!(error(&image(0, 0, false)).what, "the image has no length");
        let mut long = image(4, 0, true);
        long.truncate(1024);
        assert_eq!(error(&long).what, "the image is longer than the ROM");
        assert_eq!(error(&[0xff; 1024]).what, "the signature 0x55 0xaa is missing");
        assert_eq!(error(&[]).what, "the signature 0x55 0xaa is missing");
        assert_eq!(error(&[image(1, 0, false), vec![0; 512]].concat()).offset, 512);
        assert_eq!(error(&image(1, 0, true)[..0x19]).what, "the header is cut off");
        assert_eq!(error(&image(1, 0, true)[..0x30]).what, "the data structure is cut off");
        let mut astray = image(1, 0, true);
        astray[0x18..0x1a].fill(0xff);
        assert_eq!(error(&astray).what, "the data structure PCIR is missing");
    }
}
