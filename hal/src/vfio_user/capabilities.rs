//! What both sides tell each other when a connection begins: limits, as JSON text.
//!
//! See the vfio-user Protocol Specification, "VFIO_USER_VERSION". Unknown capabilities are
//! ignored, and what is missing has the default that the specification gives.

use serde_json::{Value, json};
use thiserror::Error;

/// The capabilities of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How many file descriptors it takes in one message.
    pub max_message_fds: u32,
    /// How many bytes one transfer may have.
    pub max_transfer: u32,
    /// How many mappings there can be at a time.
    pub max_mappings: u32,
    /// The page sizes of mappings, as a bitmap.
    pub page_sizes: u64,
    /// Whether several writes may come in one message.
    pub write_multiple: bool,
}

/// How many file descriptors this crate takes and sends in one message: what QEMU takes.
pub const MAX_MESSAGE_FDS: u32 = 16;

/// How many bytes this crate moves in one transfer: 1 MiB, the default of the specification.
pub const MAX_TRANSFER: u32 = 1 << 20;

/// How long the text may be that is looked at.
pub const MAX_TEXT: usize = 16 << 10;

impl Default for Capabilities {
    /// Those of a side that says nothing.
    fn default() -> Self {
        Self {
            max_message_fds: 1,
            max_transfer: 1 << 20,
            max_mappings: 65535,
            page_sizes: 4096,
            write_multiple: false,
        }
    }
}

impl Capabilities {
    /// Those of this crate.
    pub const OURS: Self = Self {
        max_message_fds: MAX_MESSAGE_FDS,
        max_transfer: MAX_TRANSFER,
        max_mappings: 65535,
        page_sizes: 4096,
        write_multiple: true,
    };

    /// The text that is sent, with the zero at its end.
    #[must_use]
    pub fn to_text(&self) -> Vec<u8> {
        let value = json!({ "capabilities": {
            "max_msg_fds": self.max_message_fds,
            "max_data_xfer_size": self.max_transfer,
            "max_dma_maps": self.max_mappings,
            "pgsizes": self.page_sizes,
            "write_multiple": self.write_multiple,
        }});
        let mut text = value.to_string().into_bytes();
        text.push(0);
        text
    }

    /// Reads what the other side sent. Nothing at all means the defaults.
    ///
    /// # Errors
    ///
    /// [`CapabilitiesError`].
    pub fn parse(text: &[u8]) -> Result<Self, CapabilitiesError> {
        let mut found = Self::default();
        if text.len() > MAX_TEXT {
            return Err(CapabilitiesError::TooLong { length: text.len() });
        }
        let text = match text.iter().position(|byte| *byte == 0) {
            Some(end) => text.get(..end).unwrap_or_default(),
            None if text.is_empty() => text,
            None => return Err(CapabilitiesError::NoEnd),
        };
        if text.is_empty() {
            return Ok(found);
        }
        let value: Value = serde_json::from_slice(text).map_err(|_| CapabilitiesError::NotJson)?;
        let object = value.as_object().ok_or(CapabilitiesError::NotJson)?;
        let Some(capabilities) = object.get("capabilities") else { return Ok(found) };
        let number = |name: &'static str| match capabilities.get(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(CapabilitiesError::Malformed { name }),
        };
        let narrow = |name: &'static str| -> Result<Option<u32>, CapabilitiesError> {
            Ok(number(name)?.map(|value| u32::try_from(value).unwrap_or(u32::MAX)))
        };
        if !capabilities.is_object() {
            return Err(CapabilitiesError::Malformed { name: "capabilities" });
        }
        found.max_message_fds = narrow("max_msg_fds")?.unwrap_or(found.max_message_fds);
        found.max_transfer = narrow("max_data_xfer_size")?.unwrap_or(found.max_transfer);
        found.max_mappings = narrow("max_dma_maps")?.unwrap_or(found.max_mappings);
        found.page_sizes = number("pgsizes")?.unwrap_or(found.page_sizes);
        if let Some(value) = capabilities.get("write_multiple") {
            found.write_multiple =
                value.as_bool().ok_or(CapabilitiesError::Malformed { name: "write_multiple" })?;
        }
        if found.page_sizes == 0 {
            return Err(CapabilitiesError::Malformed { name: "pgsizes" });
        }
        if found.max_transfer == 0 {
            return Err(CapabilitiesError::Malformed { name: "max_data_xfer_size" });
        }
        Ok(found)
    }

    /// What both sides can do.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            max_message_fds: self.max_message_fds.min(other.max_message_fds),
            max_transfer: self.max_transfer.min(other.max_transfer),
            max_mappings: self.max_mappings.min(other.max_mappings),
            page_sizes: self.page_sizes & other.page_sizes,
            write_multiple: self.write_multiple && other.write_multiple,
        }
    }
}

/// Why the capabilities of the other side were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CapabilitiesError {
    /// The text is longer than anybody needs.
    #[error("the capabilities have {length:#x} bytes, more than {MAX_TEXT:#x}")]
    TooLong {
        /// How long it is.
        length: usize,
    },
    /// There is no zero at its end.
    #[error("the capabilities do not end with a zero byte")]
    NoEnd,
    /// The text is not a JSON object.
    #[error("the capabilities are not a JSON object")]
    NotJson,
    /// One of them is of the wrong kind or impossible.
    #[error("the capability {name} is malformed")]
    Malformed {
        /// Which.
        name: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_what_is_not_said_has_its_default() {
        assert_eq!(Capabilities::parse(&Capabilities::OURS.to_text()), Ok(Capabilities::OURS));
        for nothing in [&b""[..], b"\0", b"{}\0", b"{\"capabilities\":{}}\0"] {
            assert_eq!(Capabilities::parse(nothing), Ok(Capabilities::default()));
        }
        let text =
            b"{\"capabilities\":{\"max_msg_fds\":8,\"pgsizes\":2101248,\"migration\":{\"pgsize\":4096}}}\0";
        let some = Capabilities::parse(text).unwrap();
        assert_eq!((some.max_message_fds, some.page_sizes), (8, 0x20_1000));
        assert_eq!((some.max_mappings, some.write_multiple), (65535, false));
        assert_eq!(some.and(&Capabilities::OURS).max_message_fds, 8);
        assert_eq!(some.and(&Capabilities::OURS).page_sizes, 4096);
    }

    #[test]
    fn text_that_is_not_what_it_should_be_is_refused() {
        use CapabilitiesError::{Malformed, NoEnd, NotJson, TooLong};
        for (text, error) in [
            (&b"{}"[..], NoEnd),
            (b"[]\0", NotJson),
            (b"{\0", NotJson),
            (b"\xff\xfe\0", NotJson),
            (b"{\"capabilities\":3}\0", Malformed { name: "capabilities" }),
            (b"{\"capabilities\":{\"max_msg_fds\":-1}}\0", Malformed { name: "max_msg_fds" }),
            (b"{\"capabilities\":{\"max_msg_fds\":\"8\"}}\0", Malformed { name: "max_msg_fds" }),
            (b"{\"capabilities\":{\"write_multiple\":1}}\0", Malformed { name: "write_multiple" }),
            (b"{\"capabilities\":{\"pgsizes\":0}}\0", Malformed { name: "pgsizes" }),
            (b"{\"capabilities\":{\"max_data_xfer_size\":0}}\0", Malformed { name: "max_data_xfer_size" }),
        ] {
            assert_eq!(Capabilities::parse(text), Err(error), "{}", String::from_utf8_lossy(text));
        }
        let long = vec![b' '; MAX_TEXT + 1];
        assert_eq!(Capabilities::parse(&long), Err(TooLong { length: MAX_TEXT + 1 }));
        let deep = [vec![b'['; 10_000], vec![0]].concat();
        assert_eq!(Capabilities::parse(&deep), Err(NotJson));
        let huge = b"{\"capabilities\":{\"max_msg_fds\":99999999999}}\0";
        assert_eq!(Capabilities::parse(huge).unwrap().max_message_fds, u32::MAX);
    }
}
