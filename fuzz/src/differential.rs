// SPDX-License-Identifier: GPL-2.0

//! Feeds the core's responder and the [`model`](crate::model)'s with identical packets, and checks
//! that their packets, completions and memory agree.

use crate::model::{Done, Model};
use crate::responder::{End, Setup};
use crate::script::{Fed, Script, Service};
use crate::world::{KEY, PEER, QKEY, SIZE};
use rrxe_core::{Packet, Status};

const EVENTS: usize = 200;

struct Both {
    core: End,
    model: Model,
    posted: u32,
}

impl Both {
    fn new(setup: &Setup) -> Both {
        let mut model = Model::new(setup.service, setup.mtu, SIZE);
        model.expected = setup.psn;
        model.resources = usize::from(setup.resources);
        model.access = setup.access;
        model.flush = setup.flush;
        model.rnr = setup.rnr & 0x1f;
        model.base = setup.base;
        model.key = KEY;
        model.rights = setup.rights;
        model.qkey = QKEY;
        model.peer = PEER;
        Both {
            core: End::new(setup),
            model,
            posted: 0,
        }
    }

    fn feed(&mut self, fed: &Fed) {
        let total = fed.total_len();
        let accepted = Packet::parse(fed.head(), total).is_ok();
        assert!(
            accepted || total % 4 != 0 || fed.head()[0] & 0xe0 != 0,
            "a request is refused"
        );
        self.core.feed(fed, total);
        if total % 4 == 0 {
            let payload: Vec<u8> = fed.payload().collect();
            self.model.take(fed.head(), &payload);
        }
        self.compare();
    }

    fn post(&mut self, len: usize) {
        self.core.world.post(len);
        self.model.receives.push_back((self.posted, vec![0; len]));
        self.posted += 1;
    }

    /// Lets both sides send up to `budget` packets.
    fn poll(&mut self, budget: u32) {
        self.core.poll(budget);
        let mut more = budget;
        for said in std::mem::take(&mut self.core.world.sent) {
            let expected = self.model.say();
            let expected = expected.unwrap_or_else(|| panic!("nothing to say, but {said:02x?}"));
            assert_eq!(said, expected, "core, and model");
            more -= 1;
        }
        if more != 0 {
            let unsaid = self.model.say();
            assert_eq!(unsaid, None, "the core does not say it");
        }
        self.model.rest();
        self.compare();
    }

    fn compare(&self) {
        let (world, model) = (&self.core.world, &self.model);
        assert_eq!(world.memory, model.memory);
        assert_eq!(world.open, model.open);
        assert_eq!(world.dead, model.dead, "one of them is lost");
        assert_eq!(self.core.responder.expected_psn(), model.expected);
        assert_eq!(self.core.responder.msn.get(), model.messages);
        assert_eq!(world.done.len(), model.done.len(), "completions");
        if let (Some((receive, completion)), Some(expected)) =
            (world.done.last(), model.done.last())
        {
            let success = completion.status == Status::Success;
            let done = Done {
                id: receive.id,
                status: completion.status as u8,
                opcode: completion.opcode as u8,
                length: completion.byte_len,
                imm: completion.imm.map(u32::to_ne_bytes),
                invalidated: completion.invalidated,
                solicited: completion.solicited,
                source: if success { completion.src_qp } else { 0 },
                data: receive.data.clone(),
            };
            assert_eq!(done, *expected, "core, and model");
        }
    }
}

/// Input: a [`Setup`], then events.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut setup = Setup::read(&mut script);
    // The model has no shared receive queues (XRC) and buffers no out-of-order packets.
    setup.buffers = false;
    if setup.service == Service::Xrc {
        setup.service = Service::Rc;
    }
    let mut both = Both::new(&setup);
    for _ in 0..EVENTS {
        if script.is_empty() || both.model.dead {
            break;
        }
        match script.u8() {
            0..=0xaf => {
                let frame = setup.frame(both.core.responder.expected_psn());
                let fed = Fed::read(&mut script, &frame);
                both.feed(&fed);
            }
            0xb0..=0xcf => both.post(usize::from(script.u16() % 5000)),
            0xd0..=0xdf => both.poll(u32::MAX),
            // The budget may be smaller than the pending responses.
            0xe0..=0xef => both.poll(u32::from(script.u8() % 16)),
            0xf0..=0xf3 => {
                both.core.world.open = false;
                both.model.open = false;
            }
            0xf4..=0xf7 => {
                both.core.world.open = true;
                both.model.open = true;
            }
            0xf8..=0xfb => {
                let rights = script.u8();
                let rights = [1, 2, 4].map(|bit| rights & bit == 0);
                both.core.world.rights = rights;
                both.model.rights = rights;
            }
            _ => {
                let access = script.u8();
                let access = [1, 2, 4].map(|bit| access & bit == 0);
                let [read, write, atomic] = access;
                both.core.responder.set_access(read, write, atomic);
                both.model.access = access;
            }
        }
    }
    both.poll(u32::MAX);
}
