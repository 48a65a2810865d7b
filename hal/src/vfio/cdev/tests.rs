use std::sync::Arc;

use super::*;
use crate::vfio::mock::MockFile;

/// Address space 7 of a file that answers everything.
fn ioas() -> (Arc<MockFile>, Ioas) {
    let file = MockFile::new(|call, message, _| {
        if call == Call::IoasAlloc {
            message.put(8, 7);
        }
        Ok(0)
    });
    let ioas = Ioas::over(file.clone()).unwrap();
    (file, ioas)
}

#[test]
fn binding_names_the_file_of_iommufd_and_attaching_the_address_space() {
    let (file, ioas) = ioas();
    let device = MockFile::new(|_, _, _| Ok(0));
    bind(&*device, &ioas, None).unwrap();
    attach(&*device, &ioas).unwrap();
    detach(&*device).unwrap();
    let asked = device.take();
    let calls: Vec<Call> = asked.iter().map(|one| one.call).collect();
    assert_eq!(calls, [Call::BindIommufd, Call::AttachIommufd, Call::DetachIommufd]);
    // The shortest messages, which the first kernels with these calls take.
    assert_eq!([16, 12, 8], [asked[0].bytes.len(), asked[1].bytes.len(), asked[2].bytes.len()]);
    assert_eq!(asked[0].bytes[8..12], descriptor(file.file()));
    assert_eq!(asked[1].bytes[8..12], 7u32.to_ne_bytes());
}

#[test]
fn a_token_makes_the_message_longer_and_is_pointed_to() {
    let (_, ioas) = ioas();
    let device = MockFile::new(|_, message, attached| {
        let Attached::List { at: 16, bytes } = attached else { return Err(Errno::FAULT) };
        assert_eq!((message.word(4), **bytes == [9; 16]), (Some(1), true));
        Ok(0)
    });
    bind(&*device, &ioas, Some(VfToken([9; 16]))).unwrap();
    assert_eq!(device.take()[0].bytes.len(), 24);
}
