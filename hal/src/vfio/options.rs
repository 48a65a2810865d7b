//! How a function is opened.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use thiserror::Error;

use super::space::SharedAddressSpace;

/// Which of the kernel's interfaces a function is opened through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelInterface {
    /// iommufd where kernel and rights allow it, type1 otherwise.
    #[default]
    Auto,
    /// The function's own device node and an address space of `/dev/iommu`.
    Iommufd,
    /// The node of its IOMMU group and a container of type 1, version 2.
    Type1,
}

impl fmt::Display for KernelInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Iommufd => "iommufd",
            Self::Type1 => "type1",
        })
    }
}

/// A text that names no interface.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no kernel interface: write auto, iommufd or type1")]
pub struct ParseInterfaceError(String);

impl FromStr for KernelInterface {
    type Err = ParseInterfaceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Iommufd, Self::Type1]
            .into_iter()
            .find(|interface| interface.to_string() == text)
            .ok_or_else(|| ParseInterfaceError(text.to_owned()))
    }
}

/// Which addresses a function sees.
#[derive(Clone, Debug, Default)]
pub enum AddressSpace {
    /// Its own, ended when it is closed.
    #[default]
    Own,
    /// One that other functions see as well: memory is mapped, and counted as locked, once.
    Shared(SharedAddressSpace),
}

/// The secret that a physical function's owner and the owners of its virtual functions
/// share, as a UUID.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VfToken(pub [u8; 16]);

impl fmt::Display for VfToken {
    /// In the usual form of five groups.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for VfToken {
    /// Does not show the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VfToken(..)")
    }
}

/// A text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a VF token is a UUID such as 83d8f4f2-509f-382f-3c1e-e6bfe0fa1001")]
pub struct ParseTokenError;

impl FromStr for VfToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) {
            return Err(ParseTokenError);
        }
        let digits: String = groups.concat();
        let mut token = [0; 16];
        for (byte, pair) in token.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            // A sign would be taken for a digit.
            let pair = core::str::from_utf8(pair).map_err(|_| ParseTokenError)?;
            let hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            let value = if hex { u8::from_str_radix(pair, 16).ok() } else { None };
            *byte = value.ok_or(ParseTokenError)?;
        }
        Ok(Self(token))
    }
}

/// How a function is opened.
#[derive(Clone, Debug)]
pub struct VfioOptions {
    /// Through which interface.
    pub interface: KernelInterface,
    /// Into which address space.
    pub address_space: AddressSpace,
    /// The token of its physical function's owner, for SR-IOV.
    pub vf_token: Option<VfToken>,
    /// How long a driver may take to close the function after the kernel has asked for it.
    /// Then the function is closed all the same, since everybody else who touches it waits.
    /// `None` waits for ever.
    pub release_limit: Option<Duration>,
}

impl Default for VfioOptions {
    fn default() -> Self {
        Self {
            interface: KernelInterface::Auto,
            address_space: AddressSpace::Own,
            vf_token: None,
            release_limit: Some(Duration::from_secs(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_as_they_are_written() {
        for interface in [KernelInterface::Auto, KernelInterface::Iommufd, KernelInterface::Type1] {
            assert_eq!(interface.to_string().parse(), Ok(interface));
        }
        let error = "vfio".parse::<KernelInterface>().unwrap_err().to_string();
        assert_eq!(error, "\"vfio\" is no kernel interface: write auto, iommufd or type1");
    }

    #[test]
    fn tokens_round_trip_and_are_not_shown_by_debug() {
        let text = "83d8f4f2-509f-382f-3c1e-e6bfe0fa1001";
        let token: VfToken = text.parse().unwrap();
        assert_eq!((token.0[0], token.0[15], token.to_string().as_str()), (0x83, 0x01, text));
        assert_eq!(format!("{token:?}"), "VfToken(..)");
        for bad in [
            "",
            "83d8f4f2509f382f3c1ee6bfe0fa1001",
            "83d8f4f2-509f-382f-3c1e-e6bfe0fa100",
            "+3d8f4f2-509f-382f-3c1e-e6bfe0fa1001",
        ] {
            assert_eq!(bad.parse::<VfToken>(), Err(ParseTokenError), "{bad}");
        }
    }
}
