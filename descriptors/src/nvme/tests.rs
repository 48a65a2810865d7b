use core::mem::offset_of;
use std::time::Duration;

use zerocopy::{FromZeros, IntoBytes};

use super::*;

#[test]
fn entries_have_their_fields_where_the_controller_looks() {
    assert_eq!(offset_of!(SubmissionEntry, command_id), 2);
    assert_eq!(offset_of!(SubmissionEntry, namespace), 4);
    assert_eq!(offset_of!(SubmissionEntry, metadata), 16);
    assert_eq!(offset_of!(SubmissionEntry, data), 24);
    assert_eq!(offset_of!(SubmissionEntry, dword10), 40);
    assert_eq!(offset_of!(SubmissionEntry, dword15), 60);
    assert_eq!(offset_of!(CompletionEntry, submission_head), 8);
    assert_eq!(offset_of!(CompletionEntry, submission_queue), 10);
    assert_eq!(offset_of!(CompletionEntry, command_id), 12);
    assert_eq!(offset_of!(CompletionEntry, status), 14);
}

#[test]
fn the_phase_bit_is_the_lowest_of_the_status_field() {
    let mut entry = CompletionEntry::default();
    entry.status.set_phase(true);
    let word = u64::from_le_bytes(entry.as_bytes()[PHASE_BIT.word * 8..][..8].try_into().unwrap());
    assert_eq!(word, 1 << PHASE_BIT.bit);
}

#[test]
fn identify_structures_have_their_fields_at_the_offsets_of_the_specification() {
    assert_eq!(offset_of!(IdentifyController, serial_number), 4);
    assert_eq!(offset_of!(IdentifyController, model_number), 24);
    assert_eq!(offset_of!(IdentifyController, firmware_revision), 64);
    assert_eq!(offset_of!(IdentifyController, max_transfer_exponent), 77);
    assert_eq!(offset_of!(IdentifyController, version), 80);
    assert_eq!(offset_of!(IdentifyController, optional_events), 92);
    assert_eq!(offset_of!(IdentifyController, controller_type), 111);
    assert_eq!(offset_of!(IdentifyController, admin_commands), 256);
    assert_eq!(offset_of!(IdentifyController, abort_limit), 258);
    assert_eq!(offset_of!(IdentifyController, warning_temperature), 266);
    assert_eq!(offset_of!(IdentifyController, total_capacity), 280);
    assert_eq!(offset_of!(IdentifyController, replay_protected), 312);
    assert_eq!(offset_of!(IdentifyController, keep_alive), 320);
    assert_eq!(offset_of!(IdentifyController, sanitize), 328);
    assert_eq!(offset_of!(IdentifyController, asymmetric_access_time), 342);
    assert_eq!(offset_of!(IdentifyController, asymmetric_group_max), 344);
    assert_eq!(offset_of!(IdentifyController, submission_entry), 512);
    assert_eq!(offset_of!(IdentifyController, max_commands), 514);
    assert_eq!(offset_of!(IdentifyController, namespaces), 516);
    assert_eq!(offset_of!(IdentifyController, nvm_commands), 520);
    assert_eq!(offset_of!(IdentifyController, format), 524);
    assert_eq!(offset_of!(IdentifyController, write_cache), 525);
    assert_eq!(offset_of!(IdentifyController, atomic_compare_write), 532);
    assert_eq!(offset_of!(IdentifyController, sgl), 536);
    assert_eq!(offset_of!(IdentifyController, subsystem_name), 768);
    assert_eq!(offset_of!(IdentifyController, power_state), 2048);
    assert_eq!(offset_of!(IdentifyController, vendor_specific), 3072);
    assert_eq!(offset_of!(IdentifyNamespace, features), 24);
    assert_eq!(offset_of!(IdentifyNamespace, format), 26);
    assert_eq!(offset_of!(IdentifyNamespace, protection), 29);
    assert_eq!(offset_of!(IdentifyNamespace, atomic_write), 34);
    assert_eq!(offset_of!(IdentifyNamespace, optimal_boundary), 46);
    assert_eq!(offset_of!(IdentifyNamespace, bytes), 48);
    assert_eq!(offset_of!(IdentifyNamespace, asymmetric_group), 92);
    assert_eq!(offset_of!(IdentifyNamespace, attributes), 99);
    assert_eq!(offset_of!(IdentifyNamespace, nguid), 104);
    assert_eq!(offset_of!(IdentifyNamespace, eui64), 120);
    assert_eq!(offset_of!(IdentifyNamespace, lba_formats), 128);
    assert_eq!(offset_of!(IdentifyNamespace, vendor_specific), 384);
}

#[test]
fn log_pages_have_their_fields_at_the_offsets_of_the_specification() {
    assert_eq!(offset_of!(SmartLog, data_units_read), 32);
    assert_eq!(offset_of!(SmartLog, power_cycles), 112);
    assert_eq!(offset_of!(SmartLog, media_errors), 160);
    assert_eq!(offset_of!(SmartLog, warning_temperature_time), 192);
    assert_eq!(offset_of!(SmartLog, temperature_sensors), 200);
    assert_eq!(offset_of!(ErrorLogEntry, status), 12);
    assert_eq!(offset_of!(ErrorLogEntry, lba), 16);
    assert_eq!(offset_of!(ErrorLogEntry, command_specific), 32);
    assert_eq!(offset_of!(FirmwareSlotLog, revisions), 8);
}

#[test]
fn registers_lie_where_the_specification_puts_them() {
    assert_eq!(NvmeRegisters::CC.offset(), 0x14);
    assert_eq!(NvmeRegisters::CSTS.offset(), 0x1c);
    assert_eq!(NvmeRegisters::AQA.offset(), 0x24);
    assert_eq!(NvmeRegisters::ACQ.offset(), 0x30);
    assert_eq!(NvmeRegisters::CMBMSC.offset(), 0x50);
}

#[test]
fn doorbells_alternate_and_keep_the_stride() {
    let close = ByteLength::new(4);
    assert_eq!(submission_doorbell(0, close), 0x1000);
    assert_eq!(completion_doorbell(0, close), 0x1004);
    assert_eq!(submission_doorbell(3, close), 0x1018);
    let apart = ControllerCapabilities(5 << 32).doorbell_stride();
    assert_eq!(completion_doorbell(1, apart), 0x1000 + 3 * 128);
    let furthest = ControllerCapabilities(15 << 32).doorbell_stride();
    assert_eq!(completion_doorbell(u16::MAX, furthest), 0x1000 + 131_071 * 131_072);
}

#[test]
fn capabilities_are_decoded() {
    // QEMU's controller with one namespace.
    let capabilities = ControllerCapabilities(0x0080_00e0_0f01_07ff);
    assert_eq!(capabilities.max_queue_entries(), 2047);
    assert_eq!(capabilities.timeout(), Duration::from_millis(7500));
    assert_eq!(capabilities.doorbell_stride(), ByteLength::new(4));
    assert!(capabilities.nvm_command_set() && capabilities.contiguous_queues_required());
    assert_eq!(capabilities.page_min(), ByteLength::SIZE_4K);
    assert_eq!(capabilities.page_max(), ByteLength::new(4096 << 8));
}

#[test]
fn configuration_words_are_encoded() {
    let mut configuration = ControllerConfiguration::default();
    configuration.set_enable(true);
    configuration.set_submission_entry_exponent(SUBMISSION_ENTRY_LOG2);
    configuration.set_completion_entry_exponent(COMPLETION_ENTRY_LOG2);
    assert_eq!(configuration.0, 0x0046_0001);
    configuration.set_shutdown(ShutdownNotification::NORMAL);
    assert_eq!(configuration.0, 0x0046_4001);
    let mut attributes = AdminQueueAttributes::default();
    attributes.set_submission_size(31);
    attributes.set_completion_size(63);
    assert_eq!(attributes.0, 0x003f_001f);
    assert_eq!(ControllerStatus(0x9).shutdown(), ShutdownStatus::COMPLETE);
    assert_eq!(Version::V1_4.to_string(), "1.4");
    assert_eq!(Version(0x0001_0201).to_string(), "1.2.1");
}

#[test]
fn a_status_is_type_and_code_and_keeps_what_it_does_not_know() {
    let mut field = StatusField(1);
    field.set_status(Status::UNRECOVERED_READ_ERROR);
    field.set_do_not_retry(true);
    assert_eq!(field.0, 0x8503);
    assert_eq!(field.status().code_type(), StatusCodeType::MEDIA_AND_DATA_INTEGRITY);
    assert_eq!(field.status().to_string(), "Unrecovered Read Error");
    for raw in 0..=0xffffu16 {
        let field = StatusField(raw);
        let mut again = StatusField(raw & !0x0ffe);
        again.set_status(field.status());
        assert_eq!(again, field);
    }
    assert_eq!(StatusField(0x0fff).status().to_string(), "0x7ff");
    assert!(StatusField(0xf001).status().is_success());
}

#[test]
fn an_sgl_descriptor_is_the_data_pointer() {
    let mut entry = SubmissionEntry::default();
    entry.set_sgl(SglDescriptor::new(SglIdentifier::LAST_SEGMENT, 0x1234_5000, 48));
    assert_eq!(entry.flags, CommandFlags::SGL);
    assert_eq!(entry.data, [0x1234_5000, 0x3000_0000_0000_0030]);
    assert_eq!(entry.sgl().identifier, SglIdentifier::LAST_SEGMENT);
    entry.set_starting_lba(0x1_0000_0002);
    assert_eq!((entry.dword10, entry.dword11), (2, 1));
    assert_eq!(entry.starting_lba(), 0x1_0000_0002);
}

#[test]
fn dwords_are_encoded() {
    let mut queue = QueueDword(0);
    queue.set_queue(3);
    queue.set_size(1023);
    assert_eq!(queue.0, 0x03ff_0003);
    let mut flags = CompletionQueueFlags(0);
    flags.set_contiguous(true);
    flags.set_interrupts_enabled(true);
    flags.set_vector(2);
    assert_eq!(flags.0, 0x0002_0003);
    let mut page = LogPageDword(0);
    page.set_page(LogPage::SMART);
    page.set_dwords_lower(127);
    assert_eq!(page.0, 0x007f_0002);
    let mut feature = FeatureDword(0);
    feature.set_feature(FeatureId::NUMBER_OF_QUEUES);
    feature.set_select(FeatureSelect::SAVED);
    assert_eq!(feature.0, 0x207);
    let event = AsyncEvent::new(AsyncEventType::NOTICE, 0, LogPage::CHANGED_NAMESPACES);
    assert_eq!(event.0, 0x0004_0002);
    assert_eq!((event.kind(), event.page()), (AsyncEventType::NOTICE, LogPage::CHANGED_NAMESPACES));
}

#[test]
fn formats_that_cannot_be_have_no_block_length() {
    let mut namespace = IdentifyNamespace::new_zeroed();
    assert_eq!(namespace.block_length(), None);
    namespace.lba_formats[3].block_exponent = 12;
    namespace.format.set_format(3);
    assert_eq!(namespace.block_length(), Some(ByteLength::SIZE_4K));
    namespace.lba_formats[3].block_exponent = 64;
    assert_eq!(namespace.block_length(), None);
    namespace.formats = 255;
    assert_eq!(namespace.available_formats().len(), 16);
}

#[test]
fn texts_lose_their_filling_and_what_is_not_printable() {
    assert_eq!(text(b"vdk 1   "), "vdk 1");
    assert_eq!(text(b"\x1b[2J\0\0"), "?[2J");
    assert_eq!(text(b"    "), "");
}
