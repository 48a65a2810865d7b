use std::io::Write;
use std::os::unix::net::UnixStream;

use vdk_hal::vfio_user::transport::MESSAGE_TIME;

use super::*;

/// A conversation that waits as short as this for an access, and the client's end of it.
const SHORT: Duration = Duration::from_millis(50);

fn conversation(most: u32) -> (Arc<Conversation>, UnixStream) {
    let (server, client) = UnixStream::pair().unwrap();
    let channel = Arc::new(Channel::new(server.into()).unwrap());
    (Conversation::with_patience(channel, most, SHORT).unwrap(), client)
}

/// Whether an access failed before a message alone would have been given up.
fn is_refused_in_time(access: impl FnOnce() -> Result<(), NotAnswered>) -> bool {
    let began = Instant::now();
    access() == Err(NotAnswered) && began.elapsed() < MESSAGE_TIME
}

fn over(conversation: &Conversation) -> Option<Over> {
    conversation.lock().over.clone()
}

#[test]
fn half_an_answer_ends_the_conversation_at_the_end_of_the_access() {
    let (conversation, client) = conversation(4096);
    let header = Header { id: 1, command: Command::DMA_READ.0, flags: Header::REPLY, size: 64, error: 0 };
    (&client).write_all(&header.as_bytes()[..9]).unwrap();
    assert!(is_refused_in_time(|| conversation.read(Iova::new(0x1000), &mut [0; 16])));
    assert_eq!(over(&conversation), Some(Over::Transport(TransportError::Stalled)));
    let session = wait(&[conversation.files()[1]], Some(Duration::ZERO)).unwrap();
    assert_eq!(session, [true], "the session is told");
    assert_eq!(conversation.command().unwrap_err(), Over::Transport(TransportError::Stalled));
    assert_eq!(conversation.read(Iova::new(0x1000), &mut [0; 16]), Err(NotAnswered));
}

#[test]
fn a_client_that_does_not_read_is_given_up_at_the_end_of_the_access() {
    let (conversation, _client) = conversation(64 << 10);
    let bytes = vec![7; 64 << 10];
    for _ in 0..20 {
        assert!(is_refused_in_time(|| conversation.write(Iova::new(0x1000), &bytes)));
    }
    // Whether the socket is full within a message or between two is for the system to say.
    assert!(matches!(over(&conversation), None | Some(Over::Transport(TransportError::Stalled))));
}

#[test]
fn an_access_of_many_messages_has_one_end() {
    let (conversation, client) = conversation(1);
    // Each question is answered in half of the time that the whole access has.
    let answers = std::thread::spawn(move || {
        let client = Channel::new(client.into()).unwrap();
        let mut count = 0;
        while let Ok(question) = client.receive(MESSAGE_TIME) {
            std::thread::sleep(SHORT / 2);
            let header = Header { flags: Header::REPLY, ..question.header };
            if client.send(header, &[&question.payload, &[0]], &[]).is_err() {
                break;
            }
            count += 1;
        }
        count
    });
    assert_eq!(conversation.read(Iova::new(0x1000), &mut [0; 64]), Err(NotAnswered));
    assert_eq!(over(&conversation), None, "no message was cut");
    conversation.channel().shut_down();
    assert!(answers.join().unwrap() < 64, "the last one was not asked for");
}
