//! Features, and the format of a namespace.

use vdk_descriptors::nvme::{
    AdminOpcode, FeatureDword, FeatureId, FeatureSelect, FormatDword, SubmissionEntry,
};

use super::Controller;
use super::error::AdminError;

impl Controller {
    /// Reads a feature that is one dword; zero for a namespace where it has none. `dword11` is
    /// what the feature asks for beside it, mostly zero.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn feature(
        &self,
        feature: FeatureId,
        select: FeatureSelect,
        namespace: u32,
        dword11: u32,
    ) -> Result<u32, AdminError> {
        let mut dword = FeatureDword::default();
        dword.set_feature(feature);
        dword.set_select(select);
        let entry = SubmissionEntry { namespace, dword10: dword.0, dword11, ..SubmissionEntry::default() };
        Ok(self.device.execute(AdminOpcode::GET_FEATURES, entry)?.result)
    }

    /// Writes a feature that is one dword; with `save` it stays over power cycles.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn set_feature(
        &self,
        feature: FeatureId,
        namespace: u32,
        value: u32,
        save: bool,
    ) -> Result<u32, AdminError> {
        let mut dword = FeatureDword::default();
        dword.set_feature(feature);
        dword.set_save(save);
        let entry =
            SubmissionEntry { namespace, dword10: dword.0, dword11: value, ..SubmissionEntry::default() };
        Ok(self.device.execute(AdminOpcode::SET_FEATURES, entry)?.result)
    }

    /// Formats a namespace: **everything in it is lost**. It may take longer than other admin
    /// commands; see [`ControllerOptions::admin_limit`](super::ControllerOptions::admin_limit).
    /// Ask for the namespace again afterwards.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn format(&self, namespace: u32, format: FormatDword) -> Result<(), AdminError> {
        if !self.facts().admin_commands.format() {
            return Err(AdminError::NotSupported { command: AdminOpcode::FORMAT_NVM, field: "OACS" });
        }
        let entry = SubmissionEntry { namespace, dword10: format.0, ..SubmissionEntry::default() };
        self.device.execute(AdminOpcode::FORMAT_NVM, entry)?;
        Ok(())
    }
}
