// SPDX-License-Identifier: GPL-2.0

//! Converts captures into seeds: scripts for the targets.
//!
//!     cargo run --manifest-path fuzz/Cargo.toml --bin seeds -- fuzz/seeds selftests/vectors/*.pcap

use rrxe_fuzz::script::{parts, Frame, Writer};
use rrxe_testkit::capture;
use rrxe_testkit::layout::{extensions, Header};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::{env, fs, io};

/// Maximum number of packets per script; more add nothing new.
const PACKETS: usize = 60;

/// A packet from BTH to ICRC.
type Ib = Vec<u8>;

fn psn(ib: &[u8]) -> u32 {
    u32::from_be_bytes([0, ib[9], ib[10], ib[11]])
}

fn is_response(opcode: u8) -> bool {
    opcode >> 5 == 0 && (0x0d..=0x12).contains(&opcode)
}

/// Returns the bytes of BTH and extension headers.
fn header_len(opcode: u8) -> usize {
    12 + extensions(opcode).iter().map(|h| h.size()).sum::<usize>()
}

fn payload(ib: &[u8]) -> u32 {
    (ib.len() - 4 - header_len(ib[0])) as u32 - u32::from((ib[1] >> 4) & 3)
}

/// The requests of one connection, and the responses to them.
struct Conversation {
    mtu: u32,
    kind: u8,
    packets: Vec<Ib>,
}

impl Conversation {
    /// Selects the queue pair that most requests of the capture go to.
    fn of(packets: &[Ib], mtu: u32) -> Option<Conversation> {
        let mut requests: BTreeMap<&[u8], usize> = BTreeMap::new();
        for ib in packets
            .iter()
            .filter(|ib| !is_response(ib[0]) && ib[5..8] != [0, 0, 1])
        {
            *requests.entry(&ib[5..8]).or_default() += 1;
        }
        let (to, _) = requests.into_iter().max_by_key(|(_, n)| *n)?;
        let first = packets.iter().find(|ib| &ib[5..8] == to)?;
        let kind = match first[0] >> 5 {
            0 => 0,
            1 => 6,
            _ => 7,
        };
        let ours = |ib: &&Ib| is_response(ib[0]) || &ib[5..8] == to;
        let packets: Vec<Ib> = packets.iter().filter(ours).take(PACKETS).cloned().collect();
        Some(Conversation { mtu, kind, packets })
    }

    fn frame(&self, psn: u32) -> Frame {
        Frame {
            service: rrxe_fuzz::script::Service::read(self.kind),
            mtu: self.mtu,
            psn,
            base: 0,
            key: 0,
            qkey: 0,
            qpn: 0,
        }
    }

    /// Returns the number of PSNs that a request takes.
    fn psns(&self, ib: &[u8]) -> u32 {
        match ib[0] & 0x1f {
            0x0c => u32::from_be_bytes(ib[24..28].try_into().expect("four bytes"))
                .div_ceil(self.mtu)
                .max(1),
            _ => 1,
        }
    }

    /// Returns the requests, for a responder that sends when the captured one did.
    fn responder(&self) -> Vec<u8> {
        let mut script = Writer::default();
        script.put(&[self.kind, 16, 0, 16]);
        let mut expected = None;
        for ib in &self.packets {
            if is_response(ib[0]) {
                script.put(&[0xd0]);
                continue;
            }
            if matches!(ib[0] & 0x1f, 0 | 4 | 5 | 9 | 0x0b | 0x17) {
                script.put(&[0xb0, 0x88, 0x13 - 1]);
            }
            script.put(&[0]);
            let frame = self.frame(*expected.get_or_insert(psn(ib)));
            script.packet(&ib[..header_len(ib[0])], payload(ib), &frame);
            expected = Some(psn(ib) + self.psns(ib));
        }
        script.0
    }

    /// Returns the messages as work requests, and the responses.
    fn requester(&self) -> Vec<u8> {
        let mut script = Writer::default();
        script.put(&[self.kind, 5, 0x3f, 4, 14, 16]);
        // First and last PSN.
        let mut outstanding: VecDeque<(u32, u32)> = VecDeque::new();
        for ib in &self.packets {
            let (opcode, at) = (ib[0] & 0x1f, psn(ib));
            if is_response(ib[0]) {
                while outstanding.len() > 1 && outstanding[0].1 < at {
                    outstanding.pop_front();
                }
                let Some(&(oldest, last)) = outstanding.front() else {
                    continue;
                };
                script.put(&[0]);
                script.packet(&ib[..header_len(ib[0])], payload(ib), &self.frame(oldest));
                if at == last {
                    outstanding.pop_front();
                }
                continue;
            }
            let op = match opcode {
                0x00 | 0x04 => 0,
                0x05 => 1,
                0x17 => 2,
                0x06 | 0x0a => 3,
                0x0b => 4,
                0x0c => 5,
                0x13 => 6,
                0x14 => 7,
                // A further packet of a message that was posted whole.
                _ => {
                    if let Some(message) = outstanding.back_mut() {
                        message.1 = at;
                    }
                    continue;
                }
            };
            let length = match extensions(ib[0]).first() {
                Some(Header::Reth) => {
                    u32::from_be_bytes(ib[24..28].try_into().expect("four bytes"))
                }
                _ => payload(ib),
            };
            let (full, rest) = parts(length, self.mtu);
            script.put(&[0x88, op]);
            if !matches!(op, 6 | 7) {
                script.put(&[0x82]);
                script.put(&((full * 256 + rest) as u16).to_le_bytes());
            } else {
                script.put(&[0x02]);
            }
            script.put(&[0xb0]);
            outstanding.push_back((at, at + self.psns(ib) - 1));
        }
        script.0
    }
}

/// Returns entries of each kind, valid and invalid.
fn entries() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for opcode in 0..11 {
        let mut script = vec![0, 0x64];
        for (flags, segments) in [(2, 1), (10, 0), (7, 3)] {
            script.extend([1, opcode, flags, segments, 0, 16, 0, 1, 2, 3, 4, 5]);
            for _ in 0..segments {
                script.extend([1, 8, 0]);
            }
            script.extend([0, 8]);
        }
        all.push(script);
    }
    all.push([0, 4, 0, 2, 1, 100, 0, 2, 0xfd, 1].to_vec());
    all
}

/// Returns a request for each attribute of the performance management agent.
fn management() -> Vec<(String, Vec<u8>)> {
    let request = |attribute: u8| {
        let mut input: Vec<u8> = (0..48).collect();
        let mut mad = [0; 66];
        mad[..4].copy_from_slice(&[1, 4, 1, 1]);
        mad[17] = attribute;
        mad[65] = 1;
        input.extend(mad);
        (format!("attribute-{attribute:02x}"), input)
    };
    [0x01, 0x12, 0x1d].map(request).to_vec()
}

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let Some(out) = arguments.next() else {
        eprintln!("seeds FOLDER CAPTURE...: writes the seeds of each target to FOLDER/TARGET");
        return Ok(());
    };
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = Path::new(&out).join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    let mut opcodes = BTreeSet::new();
    for capture in arguments {
        let name = Path::new(&capture)
            .file_stem()
            .and_then(|name| name.to_str());
        let name = name.unwrap_or("capture");
        let mtu = name
            .rsplit_once("mtu")
            .and_then(|(_, mtu)| mtu.parse().ok());
        let datagrams = capture::datagrams(&fs::read(&capture)?);
        let packets: Vec<Ib> = datagrams.into_iter().map(|datagram| datagram.ib).collect();
        for ib in packets.iter().filter(|ib| opcodes.insert(ib[0])) {
            let mut input = (ib.len() as u16).to_le_bytes().to_vec();
            input.extend(&ib[..ib.len().min(64)]);
            write("parse", &format!("opcode-{:02x}", ib[0]), &input)?;
        }
        let Some(conversation) = Conversation::of(&packets, mtu.unwrap_or(1024)) else {
            continue;
        };
        write("responder", name, &conversation.responder())?;
        write("differential", name, &conversation.responder())?;
        write("requester", name, &conversation.requester())?;
    }
    for (name, input) in management() {
        write("mad", &name, &input)?;
    }
    for (number, entry) in entries().iter().enumerate() {
        write("wqe", &format!("entry-{number:02}"), entry)?;
    }
    Ok(())
}
