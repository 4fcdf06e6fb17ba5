use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use types::{ClientId, ReplicaId, Session, ShardId};

use super::*;
use crate::Outbox;

const ME: Party = Party::Replica(ReplicaId { shard: ShardId(0), index: 1 });
/// What it tells as the last thing, when it stops.
const GOODBYE: u64 = u64::MAX;

fn client(id: u64) -> Party {
    Party::Client(ClientId(id), Session(1))
}

/// What a notebook is asked to do. Whatever it is, it first writes down that it was asked.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Nothing,
    Send(Party),
    SendLarge(Party, usize),
    Sign(Party),
    Tell,
}

const ASKS: [Ask; 4] = [Ask::Nothing, Ask::Send(ME), Ask::Sign(ME), Ask::Tell];

/// Its disk: how many lines are durable, how often it was written, and whether it fails.
#[derive(Debug, Default)]
struct Disk {
    lines: Cell<u64>,
    writes: Cell<u64>,
    fails: Cell<bool>,
}

/// A machine that writes a line in each step, and says how many there are.
#[derive(Debug)]
struct Notebook {
    lines: u64,
    disk: Rc<Disk>,
    ticks_at: Option<Time>,
    /// When each request that it keeps is due, and how long its answer is.
    kept: VecDeque<(Time, usize)>,
    /// The answers to those that were taken out and are not served.
    due: VecDeque<usize>,
    /// Whether it writes and tells one more line at the end of a turn.
    sums_up: bool,
}

/// Says a number of lines; a signed one with the number of its signature.
type Word = (u64, Option<u64>);

impl Machine for Notebook {
    type Command = Ask;
    type Received = Infallible;
    type Message = Word;
    type Unsigned = u64;
    type Event = u64;

    fn step(&mut self, _now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.lines += 1;
        match input {
            Input::Command(Ask::Nothing) => {}
            Input::Command(Ask::Send(to)) => outbox.send(to, (self.lines, None)),
            Input::Command(Ask::SendLarge(to, bytes)) => outbox.send_large(to, (self.lines, None), bytes),
            Input::Command(Ask::Sign(to)) => outbox.sign(to, self.lines),
            Input::Command(Ask::Tell) => outbox.emit(self.lines),
            Input::Message { message, .. } => match message {},
            Input::Tick => {
                self.ticks_at = None;
                outbox.emit(self.lines);
            }
        }
    }

    fn end_turn(&mut self, _now: Time, outbox: &mut OutboxOf<Self>) {
        if self.sums_up {
            self.lines += 1;
            outbox.emit(self.lines);
        }
    }

    fn leave(&mut self, _now: Time, outbox: &mut OutboxOf<Self>) {
        outbox.emit(GOODBYE);
    }

    fn deadline(&self) -> Option<Time> {
        self.ticks_at.into_iter().chain(self.kept.front().map(|(due, _)| *due)).min()
    }

    fn take_due(&mut self, now: Time) -> Option<Party> {
        let (_, bytes) = self.kept.pop_front_if(|(due, _)| *due <= now)?;
        self.due.push_back(bytes);
        Some(client(1))
    }

    fn serve_kept(&mut self, _now: Time, from: Party, outbox: &mut OutboxOf<Self>) {
        let Some(bytes) = self.due.pop_front() else { return };
        self.lines += 1;
        outbox.send_large(from, (self.lines, None), bytes);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct DiskFails;

impl std::fmt::Display for DiskFails {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the disk fails")
    }
}

impl std::error::Error for DiskFails {}

impl Durable for Notebook {
    type Failure = DiskFails;

    fn persist(&mut self) -> Result<(), DiskFails> {
        if self.disk.fails.get() {
            return Err(DiskFails);
        }
        self.disk.writes.set(self.disk.writes.get() + 1);
        self.disk.lines.set(self.lines);
        Ok(())
    }
}

/// Numbers its signatures; a batch signature is the number.
#[derive(Default)]
struct Numbers {
    signatures: u64,
    batches: Vec<usize>,
}

impl Signer<u64, Word> for Numbers {
    type Signature = u64;

    fn sign_batch(&mut self, batch: &[(Party, u64)]) -> Vec<u64> {
        self.signatures += 1;
        self.batches.push(batch.len());
        vec![self.signatures; batch.len()]
    }

    fn with_signature(&mut self, unsigned: u64, signature: u64) -> Word {
        (unsigned, Some(signature))
    }
}

fn notebook(bounds: Bounds) -> (Turns<Notebook>, Rc<Disk>) {
    let disk = Rc::new(Disk::default());
    let (kept, due) = (VecDeque::new(), VecDeque::new());
    (Turns::new(Notebook { lines: 0, disk: disk.clone(), ticks_at: None, kept, due, sums_up: false }, ME, bounds), disk)
}

fn ms(ms: u64) -> Time {
    Time(0).after_ms(ms)
}

/// What a turn came to: what was sent to others, what the machine said to itself, and its events.
type Heard = (Vec<(Party, Word)>, Vec<Word>, Vec<u64>);

/// A whole turn.
fn turn(turns: &mut Turns<Notebook>, now: Time, asks: &[Ask]) -> Result<Heard, DiskFails> {
    let mut turn = turns.begin(now);
    asks.iter().for_each(|ask| turn.step(now, Input::Command(*ask)));
    let said = turn.stepped(now).persist()?.sign(&mut Numbers::default());
    Ok((said.sends.clone(), said.own.clone(), said.events.clone()))
}

/// Where a driver stops, as in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Stepped,
    Writing,
    Written,
    Never,
}

/// The law, for all short histories: three turns of up to two inputs each, some apart from each other by more than silent
/// writes may wait, the last of which stops anywhere.
#[test]
fn nothing_is_heard_that_is_not_durable() {
    let mut turns_of: Vec<Vec<Ask>> = ASKS.iter().map(|ask| vec![*ask]).collect();
    turns_of.extend(ASKS.iter().flat_map(|first| ASKS.iter().map(|second| vec![*first, *second])));
    turns_of.push(Vec::new());
    let mut heard = 0;
    for first in &turns_of {
        for second in &turns_of {
            for third in &turns_of {
                for apart in [1, SYNC_WAIT_MS] {
                    for stop in [Stop::Stepped, Stop::Writing, Stop::Written, Stop::Never] {
                        heard += live([first, second, third], apart, stop);
                    }
                }
            }
        }
    }
    assert!(heard > 10_000, "only {heard} words were heard");
}

/// Lives through three turns, and dies in the last of them. Gives how many words were heard.
fn live(asks: [&Vec<Ask>; 3], apart_ms: u64, stop: Stop) -> usize {
    let (mut turns, disk) = notebook(Bounds { inputs_max: 8, batch_max: 1 });
    let mut signer = Numbers::default();
    let mut heard = 0;
    for (number, asks) in (0..).zip(asks) {
        let now = ms(number * apart_ms);
        let stop = if number == 2 { stop } else { Stop::Never };
        let mut begun = turns.begin(now);
        asks.iter().for_each(|ask| begun.step(now, Input::Command(*ask)));
        let stepped = begun.stepped(now);
        disk.fails.set(stop == Stop::Writing);
        if stop == Stop::Stepped {
            break;
        }
        let written = match stepped.persist() {
            Ok(written) => written,
            Err(DiskFails) => {
                assert!(turns.has_failed, "it could go on");
                break;
            }
        };
        if stop == Stop::Written {
            break;
        }
        let said = written.sign(&mut signer);
        let words = said.sends.iter().map(|(_, word)| word.0).chain(said.own.iter().map(|word| word.0)).chain(said.events.iter().copied());
        for word in words {
            assert!(word <= disk.lines.get(), "line {word} was heard of, and {} are durable: {asks:?}, {stop:?}", disk.lines.get());
            heard += 1;
        }
    }
    heard
}

#[test]
fn what_silent_turns_wrote_waits_for_the_next_that_speaks_but_not_for_long() {
    let (mut turns, disk) = notebook(Bounds::default());
    for now in [0, 5, 10] {
        turn(&mut turns, ms(now), &[Ask::Nothing]).expect("the disk is well");
        assert_eq!((disk.writes.get(), turns.wakes_at()), (0, Some(ms(SYNC_WAIT_MS))));
    }
    turn(&mut turns, ms(11), &[Ask::Tell]).expect("the disk is well");
    assert_eq!((disk.writes.get(), disk.lines.get(), turns.wakes_at()), (1, 4, None), "one write for all four");
    turn(&mut turns, ms(30), &[Ask::Nothing]).expect("the disk is well");
    turn(&mut turns, ms(30 + SYNC_WAIT_MS - 1), &[]).expect("the disk is well");
    assert_eq!(disk.writes.get(), 1);
    turn(&mut turns, ms(30 + SYNC_WAIT_MS), &[]).expect("the disk is well");
    assert_eq!((disk.writes.get(), disk.lines.get(), turns.wakes_at()), (2, 5, None), "it has waited long enough");
    turn(&mut turns, ms(99), &[]).expect("the disk is well");
    assert_eq!(disk.writes.get(), 2, "there was nothing to write");
}

#[test]
#[should_panic(expected = "after a write that failed there are no more turns")]
fn nothing_goes_on_after_a_write_that_failed() {
    let (mut turns, disk) = notebook(Bounds::default());
    disk.fails.set(true);
    assert_eq!(turn(&mut turns, ms(0), &[Ask::Tell]), Err(DiskFails));
    disk.fails.set(false);
    let _ = turn(&mut turns, ms(1), &[]);
}

#[test]
fn what_a_turn_wrote_that_never_ended_does_not_wait_for_long() {
    let (mut turns, disk) = notebook(Bounds::default());
    turns.begin(ms(3)).step(ms(3), Input::Command(Ask::Nothing));
    assert_eq!((disk.writes.get(), turns.wakes_at()), (0, Some(ms(3 + SYNC_WAIT_MS))));
    turn(&mut turns, ms(3 + SYNC_WAIT_MS), &[]).expect("the disk is well");
    assert_eq!((disk.lines.get(), turns.wakes_at()), (1, None));
}

#[test]
fn the_last_turn_leaves_nothing_unwritten() {
    let (mut turns, disk) = notebook(Bounds::default());
    let mut last = turns.begin(ms(0));
    last.step(ms(0), Input::Command(Ask::Nothing));
    let stepped = last.stepped_last(ms(0));
    assert!(stepped.writes());
    drop(stepped.persist().expect("the disk is well"));
    assert_eq!(disk.lines.get(), 1);
}

#[test]
fn what_may_be_heard_early_leaves_a_turn_silent() {
    let mut outbox = Outbox::<u8, u8, u8>::default();
    outbox.emit_silently(1);
    let inner = outbox.lend(|lent: &mut Outbox<u8, u8, f64>| {
        lent.emit_silently(2.0);
        assert!(lent.is_empty());
    });
    assert!(outbox.is_empty() && outbox.events == [1] && inner == [2.0]);
    outbox.emit(3);
    assert!(!outbox.is_empty());
}

#[test]
fn the_last_turn_ends_like_any_other() {
    let (mut turns, disk) = notebook(Bounds::default());
    turns.machine.sums_up = true;
    drop(turns.begin(ms(0)).stepped_last(ms(0)).persist().expect("the disk is well"));
    assert_eq!(disk.lines.get(), 0, "nothing was asked, so there is nothing to sum up");
    let (mut turns, disk) = notebook(Bounds::default());
    turns.machine.sums_up = true;
    let mut last = turns.begin(ms(0));
    last.step(ms(0), Input::Command(Ask::Tell));
    let said = last.stepped_last(ms(0)).persist().expect("the disk is well").sign(&mut Numbers::default());
    assert_eq!(said.events.as_slice(), [1, 2, GOODBYE]);
    assert_eq!(disk.lines.get(), 2, "what it sums up is durable before it is heard");
}

#[test]
fn who_stops_says_goodbye_though_nothing_was_asked() {
    let (mut turns, _) = notebook(Bounds::default());
    let said = turns.begin(ms(0)).stepped_last(ms(0)).persist().expect("the disk is well").sign(&mut Numbers::default());
    assert_eq!((said.inputs, said.events.as_slice()), (0, [GOODBYE].as_slice()));
}

#[test]
fn a_turn_ticks_first_and_takes_no_more_than_it_may() {
    let (mut turns, _) = notebook(Bounds { inputs_max: 3, batch_max: 1 });
    turns.machine.ticks_at = Some(ms(7));
    assert_eq!(turns.wakes_at(), Some(ms(7)));
    assert_eq!(turns.begin(ms(6)).inputs(), 0, "no tick is due");
    let mut turn = turns.begin(ms(7));
    assert_eq!((turn.inputs(), turn.room()), (1, 2));
    while turn.room() > 0 {
        turn.step(ms(7), Input::Command(Ask::Tell));
    }
    let said = turn.stepped(ms(7)).persist().expect("the disk is well").sign(&mut Numbers::default());
    assert_eq!((said.inputs, said.events.as_slice()), (3, [1, 2, 3].as_slice()), "the tick came before all");
}

#[test]
fn what_was_kept_is_served_with_the_tick_when_it_is_due() {
    let (mut turns, disk) = notebook(Bounds { inputs_max: 2, batch_max: 1 });
    turns.machine.kept = [3, 3, 4].map(|due| (ms(due), 0)).into();
    assert_eq!((turns.begin(ms(2)).inputs(), turns.wakes_at()), (0, Some(ms(3))));
    let turn = turns.begin(ms(3));
    assert_eq!((turn.inputs(), turn.room(), turn.said()), (1, 1, 2), "all of it counts as one input");
    let said = turn.stepped(ms(3)).persist().expect("the disk is well").sign(&mut Numbers::default());
    assert_eq!((said.sends.as_slice(), said.events.as_slice()), (&[(client(1), (1, None)), (client(1), (2, None))][..], &[3][..]));
    drop(said);
    assert_eq!((disk.lines.get(), turns.wakes_at()), (3, Some(ms(4))));
}

#[test]
fn with_one_tick_no_more_is_served_than_may_be() {
    let (mut turns, _) = notebook(Bounds::default());
    turns.machine.kept = vec![(ms(1), 0); KEPT_SERVED_MAX + 1].into();
    assert_eq!(turns.begin(ms(1)).said(), KEPT_SERVED_MAX);
    assert_eq!(turns.wakes_at(), Some(ms(1)), "the rest is due in the next turn");
    let (mut turns, _) = notebook(Bounds::default());
    turns.machine.kept = vec![(ms(1), ANSWER_BYTES_MAX / 2); 3].into();
    assert_eq!(turns.begin(ms(1)).said(), 2);
    assert_eq!(turns.wakes_at(), Some(ms(1)));
}

#[test]
fn a_driver_may_have_what_was_kept_served_when_it_likes() {
    let (mut turns, disk) = notebook(Bounds { inputs_max: 2, batch_max: 1 });
    turns.machine.kept = [3, 3, 4].map(|due| (ms(due), 0)).into();
    let mut turn = turns.begin_unserved(ms(3));
    assert_eq!((turn.inputs(), turn.said()), (1, 0), "the tick alone");
    assert_eq!([(); 3].map(|()| turn.take_due(ms(3))), [Some(client(1)), Some(client(1)), None]);
    turn.serve_kept(ms(3), client(1));
    assert_eq!((turn.inputs(), turn.room(), turn.said()), (2, 0, 1));
    drop(turn.stepped(ms(3)).persist().expect("the disk is well").sign(&mut Numbers::default()));
    assert_eq!((disk.lines.get(), turns.wakes_at()), (2, Some(ms(4))), "it ticks for what was not taken out alone");
    let mut turn = turns.begin_unserved(ms(3));
    turn.serve_kept(ms(3), client(1));
    assert_eq!((turn.inputs(), turn.said()), (1, 1));
    turn.serve_kept(ms(3), client(1));
    assert_eq!((turn.inputs(), turn.said()), (2, 1), "nothing is left to be served");
}

#[test]
fn a_turn_whose_answers_are_long_takes_no_more() {
    let (mut turns, _) = notebook(Bounds::default());
    for _ in 0..2 {
        let mut turn = turns.begin(ms(0));
        for room in [INPUTS_MAX, INPUTS_MAX - 1, 0] {
            assert_eq!(turn.room(), room);
            turn.step(ms(0), Input::Command(Ask::SendLarge(client(1), ANSWER_BYTES_MAX / 2)));
        }
        let said = turn.stepped(ms(0)).persist().expect("the disk is well").sign(&mut Numbers::default());
        assert_eq!(said.sends.len(), 3);
    }
}

#[test]
fn statements_to_one_party_share_a_signature_and_all_it_is_told_stays_in_order() {
    let (mut turns, _) = notebook(Bounds { inputs_max: 16, batch_max: 2 });
    let (one, two) = (client(1), client(2));
    let mut turn = turns.begin(ms(0));
    for ask in [Ask::Sign(two), Ask::Sign(one), Ask::Send(two), Ask::Sign(two), Ask::Send(one), Ask::Sign(one), Ask::Sign(ME)] {
        turn.step(ms(0), Input::Command(ask));
    }
    let mut signer = Numbers::default();
    let said = turn.stepped(ms(0)).persist().expect("the disk is well").sign(&mut signer);
    assert_eq!((said.statements, said.signatures), (5, 3));
    assert_eq!(signer.batches, [2, 2, 1]);
    // Parties are ordered: replicas before clients.
    let words: Vec<_> = said.sends.iter().map(|(to, word)| (*to, word.0)).collect();
    assert_eq!(words, [(one, 2), (one, 5), (one, 6), (two, 1), (two, 3), (two, 4)], "each party hears in the order of what was said");
    assert_eq!(said.own.iter().map(|word| word.0).collect::<Vec<_>>(), [7]);
}

#[test]
fn what_a_machine_says_to_itself_is_not_heard_in_the_same_turn() {
    let (mut turns, disk) = notebook(Bounds::default());
    let (sends, own, _) = turn(&mut turns, ms(0), &[Ask::Send(ME), Ask::Send(client(1)), Ask::Nothing]).expect("the disk is well");
    assert_eq!((sends, own), (vec![(client(1), (2, None))], vec![(1, None)]));
    assert_eq!(disk.lines.get(), 3, "it is durable before it is heard");
}

#[test]
fn a_machine_inside_another_speaks_into_the_same_outbox() {
    let mut outbox: Outbox<u8, (), &str> = Outbox::default();
    outbox.send(ME, 1);
    let events = outbox.lend(|outbox| {
        outbox.send(ME, 2);
        outbox.emit(3.0);
    });
    assert_eq!((outbox.sends, events), (vec![(ME, 1), (ME, 2)], vec![3.0]));
    assert!(outbox.events.is_empty());
}
