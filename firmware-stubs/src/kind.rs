//! Which devices there are.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// An emulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StubKind {
    /// QEMU's educational device.
    Edu,
    /// Intel I/OAT, the "QuickData" copy engine, interface version 3.2.
    Ioat,
    /// An NVM Express 1.4 controller with the NVM command set.
    Nvme,
}

impl StubKind {
    /// Every kind, in order of their names.
    pub const ALL: [Self; 3] = [Self::Edu, Self::Ioat, Self::Nvme];

    /// The name that a person types.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Edu => "edu",
            Self::Ioat => "ioat",
            Self::Nvme => "nvme",
        }
    }
}

impl fmt::Display for StubKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is not the name of an emulated device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no emulated device {0:?}: there are edu, ioat and nvme")]
pub struct ParseStubKindError(String);

impl FromStr for StubKind {
    type Err = ParseStubKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| ParseStubKindError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for kind in StubKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "mlx5".parse::<StubKind>().unwrap_err().to_string();
        assert_eq!(error, "there is no emulated device \"mlx5\": there are edu, ioat and nvme");
    }
}
