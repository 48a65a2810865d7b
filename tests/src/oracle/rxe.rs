//! Linux's `rdma_rxe` in a guest, through the program `tests/roce/verbs.c`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vdk_descriptors::roce::{Gid, Qpn};
use vdk_firmware_stubs::roce::{
    Operation, QueueSizes, Rights, ScatterGatherEntry, Service, Side, State, Station, Status,
};

use super::adapter::{Adapter, Connection, Done, Pair, Region, Send, gid_digits};

/// The program at the other end of a character device of the guest.
#[derive(Debug)]
pub struct Rxe {
    input: BufReader<UnixStream>,
    output: UnixStream,
    station: Station,
    gid_index: u32,
    /// The address handles that were made.
    handles: BTreeMap<IpAddr, u32>,
}

/// How long an answer may take, beyond what the request itself waits for.
const PATIENCE: Duration = Duration::from_secs(20);

impl Rxe {
    /// Connects to the socket of the character device. The station is that of the guest; its
    /// address must have a GID.
    ///
    /// # Errors
    ///
    /// Nobody is there, or the port has no such address.
    pub fn connect(socket: &Path, station: Station) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("cannot connect to {}", socket.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let input = BufReader::new(stream.try_clone()?);
        let mut rxe = Self { input, output: stream, station, gid_index: 0, handles: BTreeMap::new() };
        rxe.move_to(station)?;
        Ok(rxe)
    }

    /// Speaks from another address of the same port from now on; it must have a GID.
    ///
    /// # Errors
    ///
    /// The port has no such address, or the program does not answer.
    pub fn move_to(&mut self, station: Station) -> Result<()> {
        let wanted = gid_digits(station.address);
        for index in 0..8 {
            if self.ask(&format!("gid {index}"), Duration::ZERO)?.first() == Some(&wanted) {
                (self.station, self.gid_index) = (station, index);
                return Ok(());
            }
        }
        bail!("the guest's port has no GID of {}", station.address)
    }

    /// Tells the program that nothing more is wanted.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn end(mut self) -> Result<()> {
        self.ask("end", Duration::ZERO).map(|_| ())
    }

    /// The hardware counters of the port.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        let values = self.ask("counters", Duration::ZERO)?;
        values
            .iter()
            .map(|value| {
                let (name, value) = value.split_once('=').context("a counter without a value")?;
                Ok((name.to_owned(), value.parse()?))
            })
            .collect()
    }

    /// The numbers of the asynchronous events since the last question.
    ///
    /// # Errors
    ///
    /// The program does not answer.
    pub fn events(&mut self) -> Result<Vec<u32>> {
        self.ask("events", Duration::ZERO)?.iter().map(|event| Ok(event.parse()?)).collect()
    }

    /// Sends a request; gives the words of the answer, or the errno of a refusal.
    fn request(&mut self, request: &str, wait: Duration) -> Result<Result<Vec<String>, i32>> {
        self.output.set_write_timeout(Some(PATIENCE))?;
        self.output.set_read_timeout(Some(PATIENCE + wait))?;
        writeln!(self.output, "{request}").context("the guest takes no requests")?;
        let mut line = String::new();
        let read = self.input.read_line(&mut line).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                anyhow::anyhow!("the guest did not answer {request:?} within {:?}", PATIENCE + wait)
            }
            _ => error.into(),
        })?;
        if read == 0 {
            bail!("the guest is gone; it was asked {request:?}");
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(Ok(words.collect())),
            Some("error") => Ok(Err(words
                .next()
                .and_then(|errno| errno.parse().ok())
                .context("an error without a number")?)),
            _ => bail!("the guest answered {line:?} to {request:?}"),
        }
    }

    /// The same, of a request that must not be refused.
    fn ask(&mut self, request: &str, wait: Duration) -> Result<Vec<String>> {
        match self.request(request, wait)? {
            Ok(values) => Ok(values),
            Err(errno) => bail!("the guest refused {request:?} with errno {errno}"),
        }
    }

    /// Whether a post was taken.
    fn post(&mut self, request: &str) -> Result<bool> {
        Ok(self.request(request, Duration::ZERO)?.is_ok())
    }

    /// The address handle of a station.
    fn handle_for(&mut self, station: Station) -> Result<u32> {
        if let Some(handle) = self.handles.get(&station.address) {
            return Ok(*handle);
        }
        let gid = gid_digits(Gid::from_address(station.address).address());
        let request = format!("address {} {gid}", self.gid_index);
        let handle = value(&self.ask(&request, Duration::ZERO)?, 0)?;
        self.handles.insert(station.address, handle);
        Ok(handle)
    }
}

/// A value of an answer.
fn value<T: FromStr>(values: &[String], index: usize) -> Result<T> {
    let text = values.get(index).context("the guest's answer is too short")?;
    text.parse().ok().with_context(|| format!("the guest answered {text:?}"))
}

fn hexadecimal(values: &[String], index: usize) -> Result<u64> {
    let text = values.get(index).context("the guest's answer is too short")?;
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .with_context(|| format!("the guest answered {text:?}"))
}

/// The flags of `ibv_reg_mr` and of a queue pair.
fn access(rights: Rights) -> u32 {
    let flags = [
        (Rights::LOCAL_WRITE, 1),
        (Rights::REMOTE_WRITE, 2),
        (Rights::REMOTE_READ, 4),
        (Rights::REMOTE_ATOMIC, 8),
    ];
    flags.iter().filter(|(right, _)| rights.allow(*right)).map(|(_, flag)| flag).sum()
}

fn entries(entries: &[ScatterGatherEntry]) -> String {
    entries.iter().map(|entry| format!(" {:#x} {} {}", entry.address, entry.length, entry.key)).collect()
}

/// The status of a completion by its number in verbs; `None` within for success.
fn status(number: u8) -> Option<Option<Status>> {
    Some(match number {
        0 => None,
        1 => Some(Status::LocalLength),
        2 => Some(Status::LocalQueuePairOperation),
        4 => Some(Status::LocalProtection),
        5 => Some(Status::Flushed),
        7 => Some(Status::BadResponse),
        9 => Some(Status::RemoteInvalidRequest),
        10 => Some(Status::RemoteAccess),
        11 => Some(Status::RemoteOperation),
        12 => Some(Status::RetryExceeded),
        13 => Some(Status::ReceiverNotReadyExceeded),
        _ => return None,
    })
}

/// `id,status,opcode,length,flags,immediate`.
fn completion(text: &str) -> Result<Done> {
    let meaning = || format!("the guest told a completion {text:?}");
    let fields: Vec<u64> = text.split(',').map(str::parse).collect::<Result<_, _>>().with_context(meaning)?;
    let [id, code, _opcode, length, flags, immediate] = fields[..] else { bail!(meaning()) };
    let status = u8::try_from(code).ok().and_then(status).with_context(meaning)?;
    let done = status.is_none();
    Ok(Done {
        id,
        status,
        length: if done { u32::try_from(length)? } else { 0 },
        // IBV_WC_WITH_IMM
        immediate: if done && flags & 2 != 0 { Some(u32::try_from(immediate)?) } else { None },
    })
}

impl Adapter for Rxe {
    fn station(&self) -> Station {
        self.station
    }

    fn register(&mut self, length: u32, rights: Rights) -> Result<Region> {
        let values = self.ask(&format!("region {length} {}", access(rights)), Duration::ZERO)?;
        Ok(Region {
            handle: value(&values, 0)?,
            address: hexadecimal(&values, 1)?,
            local_key: value(&values, 2)?,
            remote_key: value(&values, 3)?,
        })
    }

    fn fill(&mut self, region: &Region, offset: u32, length: u32, seed: u64) -> Result<()> {
        self.ask(&format!("fill {} {offset} {length} {seed}", region.handle), Duration::ZERO).map(|_| ())
    }

    fn hash(&mut self, region: &Region, offset: u32, length: u32) -> Result<u64> {
        hexadecimal(&self.ask(&format!("hash {} {offset} {length}", region.handle), Duration::ZERO)?, 0)
    }

    fn create(&mut self, service: Service, sizes: QueueSizes) -> Result<Pair> {
        let service = match service {
            Service::ReliableConnected => "rc",
            Service::UnreliableConnected => "uc",
            Service::Datagram => "ud",
        };
        let QueueSizes { sends, receives, entries, inline } = sizes;
        let request = format!("create {service} {sends} {receives} {entries} {inline}");
        let values = self.ask(&request, Duration::ZERO)?;
        let number = Qpn::new(value(&values, 1)?).context("a queue pair number of more than 24 bits")?;
        Ok(Pair { handle: value(&values, 0)?, number })
    }

    fn connect(&mut self, pair: Pair, connection: &Connection) -> Result<()> {
        let (handle, gid_index) = (pair.handle, self.gid_index);
        let Connection { mtu, destination, receive_psn, responder_depth, rnr_timer, .. } = *connection;
        let Connection { send_psn, timeout, retries, rnr_retries, initiator_depth, .. } = *connection;
        let gid = gid_digits(connection.peer.address);
        let steps = [
            format!("init {handle} {} {}", access(connection.access), connection.q_key.0),
            format!(
                "receive-ready {handle} {} {} {} {responder_depth} {rnr_timer} {gid_index} {gid}",
                mtu.code(),
                destination.value(),
                receive_psn.value()
            ),
            format!(
                "send-ready {handle} {} {timeout} {retries} {rnr_retries} {initiator_depth}",
                send_psn.value()
            ),
        ];
        for step in steps {
            self.ask(&step, Duration::ZERO)?;
        }
        Ok(())
    }

    fn send(&mut self, pair: Pair, request: &Send<'_>) -> Result<bool> {
        let (opcode, immediate, remote, compare, swap) = match request.operation {
            Operation::Write(remote) => (0, 0, remote, 0, 0),
            Operation::WriteWithImmediate(remote, immediate) => (1, immediate, remote, 0, 0),
            Operation::Send => (2, 0, Default::default(), 0, 0),
            Operation::SendWithImmediate(immediate) => (3, immediate, Default::default(), 0, 0),
            Operation::Read(remote) => (4, 0, remote, 0, 0),
            Operation::CompareSwap { remote, compare, swap } => (5, 0, remote, compare, swap),
            Operation::FetchAdd { remote, add } => (6, 0, remote, add, 0),
            Operation::SendWithInvalidate(key) => (9, key, Default::default(), 0, 0),
        };
        let (handle, number, q_key) = match request.to {
            Some((station, number, q_key)) => (self.handle_for(station)?, number.value(), q_key.0),
            None => (0, 0, 0),
        };
        // IBV_SEND_SIGNALED
        let flags = 2;
        self.post(&format!(
            "send {} {} {opcode} {flags} {immediate} {:#x} {} {compare} {swap} {handle} {number} {q_key}{}",
            pair.handle,
            request.id,
            remote.address,
            remote.key,
            entries(request.entries)
        ))
    }

    fn receive(&mut self, pair: Pair, id: u64, pieces: &[ScatterGatherEntry]) -> Result<bool> {
        self.post(&format!("receive {} {id}{}", pair.handle, entries(pieces)))
    }

    fn poll(&mut self, pair: Pair, side: Side, count: usize, patience: Duration) -> Result<Vec<Done>> {
        let side = match side {
            Side::Send => 0,
            Side::Receive => 1,
        };
        let request = format!("poll {} {side} {count} {}", pair.handle, patience.as_millis());
        self.ask(&request, patience)?.iter().map(|text| completion(text)).collect()
    }

    fn fail(&mut self, pair: Pair) -> Result<()> {
        self.ask(&format!("fail {}", pair.handle), Duration::ZERO).map(|_| ())
    }

    fn state(&mut self, pair: Pair) -> Result<State> {
        let number: usize = value(&self.ask(&format!("state {}", pair.handle), Duration::ZERO)?, 0)?;
        State::ALL.get(number).copied().with_context(|| format!("the guest told a state {number}"))
    }

    fn destroy(&mut self, pair: Pair) -> Result<()> {
        self.ask(&format!("destroy {}", pair.handle), Duration::ZERO).map(|_| ())
    }

    fn deregister(&mut self, region: &Region) -> Result<()> {
        self.ask(&format!("forget {}", region.handle), Duration::ZERO).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_read_as_the_program_writes_them() {
        let done = |status, length, immediate| Done { id: 7, status, length, immediate };
        assert_eq!(completion("7,0,129,100,2,5").unwrap(), done(None, 100, Some(5)));
        assert_eq!(completion("7,0,128,100,0,9").unwrap(), done(None, 100, None));
        // What else is in a failed one means nothing.
        assert_eq!(completion("7,10,3,100,2,9").unwrap(), done(Some(Status::RemoteAccess), 0, None));
        for text in ["", "7", "7,0,128,100,0", "7,99,0,0,0,0", "7,x,0,0,0,0", "7,0,0,0,0,0,0"] {
            assert!(completion(text).is_err(), "{text}");
        }
    }

    #[test]
    fn statuses_have_their_numbers_in_verbs() {
        for number in 0..=u8::MAX {
            if let Some(Some(status)) = status(number) {
                assert_eq!(status as u8, number);
            }
        }
    }
}
