//! Any bytes give a frame or an error; a frame is rebuilt to what it was read from.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vdk_descriptors::roce::neighbour::Neighbour;
use vdk_descriptors::roce::{Envelope, Frame, FrameError, Unverified};

fuzz_target!(|bytes: &[u8]| {
    let _ = Neighbour::parse(bytes);
    let Ok(unverified) = Unverified::parse(bytes) else {
        let _ = Envelope::parse(bytes);
        return;
    };
    let frame = *unverified.frame();
    match Frame::parse(bytes) {
        Ok(verified) => {
            assert_eq!(verified, frame);
            let envelope = Envelope::parse(bytes).expect("its headers are fewer");
            assert_eq!((envelope.network, envelope.psn), (frame.headers.network, frame.headers.bth.psn));
        }
        Err(FrameError::Icrc { carried, computed }) => assert_ne!(carried, computed),
        Err(error) => panic!("{error} after the headers were read"),
    }
    let mut buffer = vec![0; frame.headers.frame_length(frame.payload.len())];
    let length = frame.build(&mut buffer).expect("what was read can be built");
    assert_eq!(length, buffer.len());
    assert_eq!(Frame::parse(&buffer), Ok(frame));
});
