//! One situation each: who joins whom, who sees what, and what happens when it goes wrong.

use basil::{Failure, Refusal};
use cataphract::{BatchSize, ConflictRule, Failed, NotTaken, Operation, Order, Pool, PoolOptions, Work};
use machine::Time;
use types::{ClientId, Key, Timestamp, Value};

use crate::harness::{CLUSTER, Luck, World, delete, get, put};

fn options() -> PoolOptions {
    PoolOptions { size: BatchSize::Fixed(100), in_flight: 1, ..PoolOptions::default() }
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn a_batch_that_reads_what_it_wrote_and_writes_what_it_read_gives_both_their_results() {
    // The paper's flags, being one for the whole batch, would give one of the two a wrong value.
    let mut world = World::new(options());
    world.foreign_write("a", "old a");
    world.foreign_write("b", "old b");
    let read_after_write = world.submit(&[put("a", "new a"), get("a")]);
    let write_after_read = world.submit(&[get("b"), put("b", "new b"), get("b")]);
    world.settle();
    assert_eq!(world.values(read_after_write), some(&["new a"]));
    assert_eq!(world.values(write_after_read), some(&["old b", "new b"]));
    assert_eq!(world.committed(read_after_write).transaction.id(), world.committed(write_after_read).transaction.id());
    assert_eq!((world.reads_sent, world.sent.len()), (1, 1));
}

#[test]
fn a_later_transaction_reads_what_an_earlier_one_writes_and_deletes() {
    let mut world = World::new(options());
    world.foreign_write("x", "0");
    let first = world.submit(&[get("x"), put("x", "1")]);
    let second = world.submit(&[get("x"), put("x", "2")]);
    let third = world.submit(&[get("x"), delete("x")]);
    let fourth = world.submit(&[get("x"), put("y", "1")]);
    world.settle();
    let values = [first, second, third].map(|ticket| world.values(ticket));
    assert_eq!(values, [some(&["0"]), some(&["1"]), some(&["2"])]);
    assert_eq!(world.values(fourth), vec![None]);
    assert_eq!([first, second, third, fourth].map(|ticket| world.committed(ticket).place), [0, 1, 2, 3]);
    assert_eq!(world.sent.len(), 1, "all in one transaction");
    assert_eq!(world.pool.counts().chained_reads, 3);
}

#[test]
fn by_the_papers_rule_a_batch_ends_at_the_first_conflict() {
    let mut world = World::new(PoolOptions { conflicts: ConflictRule::EndBatch, ..options() });
    let first = world.submit(&[get("x"), put("x", "1")]);
    let second = world.submit(&[get("y")]);
    let third = world.submit(&[get("x")]);
    let fourth = world.submit(&[get("z")]);
    world.settle();
    let ids = [first, second, third, fourth].map(|ticket| world.committed(ticket).transaction.id());
    assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[1] != ids[2]);
    assert_eq!(world.values(third), some(&["1"]));
    assert_eq!((world.pool.counts().chained_reads, world.pool.counts().ended_at_conflict), (0, 1));
}

#[test]
fn one_that_conflicts_may_be_left_out_while_others_go_on() {
    let mut world = World::new(PoolOptions { conflicts: ConflictRule::LeaveOut, ..options() });
    let first = world.submit(&[get("x"), put("x", "1")]);
    let second = world.submit(&[get("x"), put("y", "1")]);
    let third = world.submit(&[put("z", "1")]);
    world.settle();
    assert_eq!([first, second, third].map(|ticket| world.committed(ticket).size), [2, 1, 2]);
    assert_eq!(world.values(second), some(&["1"]));
    assert_eq!((world.pool.counts().chained_reads, world.pool.counts().deferred), (0, 1));
}

#[test]
fn by_the_papers_rule_writers_of_one_key_share_a_batch() {
    let mut world = World::new(PoolOptions { conflicts: ConflictRule::EndBatch, ..options() });
    let tickets = ["1", "2", "3"].map(|value| world.submit(&[put("x", value)]));
    world.settle();
    assert_eq!(world.sent.len(), 1);
    assert_eq!(world.store.newest()[&Key::from("x")], Value::from("3"));
    assert_eq!(tickets.map(|ticket| world.committed(ticket).size), [3, 3, 3]);
}

#[test]
fn only_writes_need_no_read() {
    let mut world = World::new(options());
    world.submit(&[put("a", "1"), get("a")]);
    world.submit(&[get("a"), put("b", "2")]);
    world.settle();
    assert_eq!((world.reads_sent, world.sent.len()), (0, 1));
}

#[test]
fn interactive_members_join_in_an_order_that_keeps_their_reads_valid() {
    let mut world = World::new(options());
    world.foreign_write("a", "old");
    // The writer is ready first, and the reader has not seen its write: it must come before.
    let mut reader = world.begin();
    world.run(&mut reader, &[get("a"), put("b", "1")]);
    let writer = world.submit_run(&[put("a", "new")]);
    let reader = world.join(reader);
    let known = world.submit(&[get("a"), get("b"), put("c", "1")]);
    world.settle();
    assert_eq!(world.sent.len(), 1, "one batch");
    assert_eq!([reader, writer, known].map(|ticket| world.committed(ticket).place), [0, 1, 2]);
    assert_eq!(world.values(known), some(&["new", "1"]));
}

#[test]
fn two_members_that_missed_each_others_writes_do_not_share_a_batch() {
    let mut world = World::new(options());
    let (mut one, mut other) = (world.begin(), world.begin());
    world.run(&mut one, &[get("x"), put("x", "1")]);
    world.run(&mut other, &[get("x"), put("x", "2")]);
    let (one, other) = (world.join(one), world.join(other));
    world.settle();
    assert_eq!(world.committed(one).size, 1);
    assert_eq!(world.outcomes[&other].as_ref().unwrap_err(), &Failed::Conflict);
    // It was known here that it could not: nobody was asked.
    assert_eq!(world.sent.len(), 1);
    assert_eq!((world.pool.counts().deferred, world.pool.counts().stale), (1, 1));
}

#[test]
fn one_that_does_not_fit_commits_in_the_next_batch_if_the_first_one_aborts() {
    let mut world = World::new(options());
    let (mut one, mut other) = (world.begin(), world.begin());
    world.run(&mut one, &[get("x"), get("y"), put("x", "1")]);
    world.run(&mut other, &[get("x"), put("x", "2")]);
    let (one, other) = (world.join(one), world.join(other));
    world.foreign_write("y", "meanwhile");
    world.settle();
    assert_eq!(world.outcomes[&one].as_ref().unwrap_err(), &Failed::Conflict);
    assert_eq!(world.committed(other).size, 1);
}

#[test]
fn a_stale_read_aborts_its_transaction_and_no_other_of_the_batch() {
    let mut world = World::new(options());
    let stale = world.submit_run(&[get("x"), put("a", "1")]);
    let good: Vec<u64> = (0..7).map(|at| world.submit_run(&[get("y"), put(&format!("b{at}"), "1")])).collect();
    let chained = world.submit(&[get("a"), get("b0"), put("c", "1")]);
    world.foreign_write("x", "meanwhile");
    world.settle();
    assert_eq!(world.outcomes[&stale].as_ref().unwrap_err(), &Failed::Conflict);
    assert!(good.iter().all(|ticket| world.outcomes[ticket].is_ok()));
    // It was to read what never came to be, and has read the store instead.
    assert_eq!(world.values(chained), vec![None, Some("1".to_owned())]);
    assert_eq!(world.pool.counts().aborted, 1);
}

#[test]
fn an_aborted_batch_is_tried_again_in_halves() {
    let mut world = World::new(options());
    let tickets: Vec<u64> = (0..8).map(|at| world.submit(&[put(&format!("k{at}"), "1")])).collect();
    // Somebody's clock is ahead: whoever writes k5 soon is too late.
    world.foreign_read("k5", 4);
    world.settle();
    assert!(tickets.iter().all(|ticket| world.outcomes[ticket].is_ok()));
    let sizes: Vec<u32> = tickets.iter().map(|ticket| world.committed(*ticket).size).collect();
    assert_eq!(sizes[..4], [4, 4, 4, 4], "the half without it commits as it is");
    assert!(world.pool.counts().split >= 1);
}

#[test]
fn a_refused_member_is_split_off_and_the_others_commit() {
    let mut world = World::new(options());
    world.store.forbidden = Some(Key::from("k2"));
    let tickets: Vec<u64> = (0..8).map(|at| world.submit(&[put(&format!("k{at}"), "1")])).collect();
    world.settle();
    for ticket in tickets {
        match &world.outcomes[&ticket] {
            Ok(_) => assert_ne!(ticket, 2),
            Err(why) => assert_eq!((ticket, *why), (2, Failed::NotCommitted(Failure::Refused(Refusal::NotPermitted)))),
        }
    }
    assert_eq!(world.store.newest().len(), 7);
    assert_eq!((world.pool.counts().aborted, world.pool.counts().conflicts), (0, 0));
}

#[test]
fn an_unanswered_commit_has_an_unknown_outcome() {
    let mut world = World::new(options());
    let tickets = [world.submit(&[put("a", "1")]), world.submit(&[put("b", "1")])];
    world.advance();
    world.deliver(0, Luck::Fails(Failure::TimedOut(None)));
    world.settle();
    assert!(tickets.iter().all(|ticket| matches!(world.outcomes[ticket], Err(Failed::Unknown))));
}

#[test]
fn of_a_commit_without_an_answer_only_what_writes_has_an_unknown_outcome() {
    // By this rule those that only read share batches with others.
    let mut world = World::new(PoolOptions { conflicts: ConflictRule::EndBatch, ..options() });
    let (writes, reads) = (world.submit(&[put("a", "1")]), world.submit(&[get("b")]));
    let joined = world.submit_run(&[get("c")]);
    world.advance();
    world.deliver(0, Luck::Done);
    world.deliver(0, Luck::Done);
    let failure = Failure::TimedOut(None);
    world.deliver(0, Luck::Fails(failure));
    world.settle();
    assert_eq!(world.outcomes[&writes].as_ref().unwrap_err(), &Failed::Unknown);
    for ticket in [reads, joined] {
        assert_eq!(world.outcomes[&ticket].as_ref().unwrap_err(), &Failed::NotCommitted(failure));
    }
}

#[test]
fn declared_members_are_retried_until_their_timeout() {
    let mut world = World::new(PoolOptions { retry_ms: 40, ..options() });
    let ticket = world.submit(&[put("x", "1")]);
    world.foreign_read("x", 1_000_000);
    world.settle();
    assert_eq!(world.outcomes[&ticket].as_ref().unwrap_err(), &Failed::Conflict);
    assert!(world.pool.counts().aborted > 1);
}

#[test]
fn a_member_that_read_another_value_of_the_same_timestamp_is_returned_as_a_conflict() {
    let mut world = World::new(options());
    world.foreign_write("x", "never");
    let ran = world.submit_run(&[get("x"), put("y", "1")]);
    world.store.replace("x", "truly");
    let known = world.submit(&[get("x"), put("z", "1")]);
    world.settle();
    assert_eq!(world.outcomes[&ran].as_ref().unwrap_err(), &Failed::Conflict);
    assert_eq!(world.values(known), some(&["truly"]));
}

#[test]
fn a_member_in_doubt_is_not_examined_again_before_a_batch_ends() {
    let mut world = World::new(PoolOptions { in_flight: 3, ..options() });
    world.submit_run(&[put("w", "1")]);
    world.settle();
    let mut buffer = world.begin();
    world.run(&mut buffer, &[get("x"), put("y", "1")]);
    world.submit(&[put("x", "1")]);
    world.advance();
    let doubtful = world.join(buffer);
    world.advance();
    assert_eq!((world.pool.waiting(), world.pool.under_way()), (1, 1), "it may have been overtaken");
    assert!(!world.pool.can_advance(world.now()), "nothing can be done about it before that batch ends");
    world.settle();
    assert_eq!(world.outcomes[&doubtful].as_ref().unwrap_err(), &Failed::Conflict);
}

#[test]
fn read_only_batches_do_not_affect_the_size_of_writing_ones() {
    let mut world = World::new(PoolOptions { size: BatchSize::Adaptive { max: 1_000 }, ..options() });
    world.submit(&[get("x")]);
    world.settle();
    let limit = world.pool.batch_limit();
    for at in 0..3 * limit {
        world.submit(&[put(&format!("k{at}"), "1")]);
    }
    world.advance();
    // It takes a tenth of a second.
    for _ in 0..100 {
        world.timestamp();
    }
    world.deliver(0, Luck::Done);
    world.deliver(0, Luck::Done);
    assert!(world.pool.batch_limit() > limit, "a full batch has committed, and others wait");
    world.settle();
}

#[test]
fn a_withdrawn_member_of_a_waiting_half_is_not_retried() {
    let mut world = World::new(options());
    let tickets = [world.submit(&[put("x", "1")]), world.submit(&[put("y", "1")])];
    world.foreign_read("x", 1_000_000);
    world.advance();
    world.deliver(0, Luck::Done);
    world.deliver(0, Luck::Done);
    assert!(world.pool.withdraw(tickets[0]), "it is in a half that waits");
    world.settle();
    assert_eq!((world.sent.len(), world.committed(tickets[1]).size), (2, 1));
    assert!(!world.outcomes.contains_key(&tickets[0]));
}

#[test]
fn a_member_that_was_withdrawn_while_in_flight_is_not_tried_again() {
    let mut world = World::new(options());
    let tickets = [world.submit(&[put("x", "1")]), world.submit(&[put("y", "1")])];
    world.foreign_read("x", 1_000);
    world.advance();
    assert!(!world.pool.withdraw(tickets[0]), "it is in flight");
    world.settle();
    assert_eq!(world.outcomes[&tickets[0]].as_ref().unwrap_err(), &Failed::Conflict);
    assert_eq!((world.committed(tickets[1]).attempts, world.sent.len()), (2, 2));
}

#[test]
fn what_waits_for_too_long_is_given_up() {
    let mut world = World::new(PoolOptions { retry_ms: 40, ..options() });
    let under_way = world.submit(&[put("x", "1")]);
    world.advance();
    let waits = world.submit(&[put("y", "1")]);
    let came = world.now();
    assert_eq!(world.pool.deadline(), Some(came.after_ms(40)));
    while world.now() < came.after_ms(40) {
        assert!(!world.pool.can_advance(world.now()));
        world.timestamp();
    }
    assert!(world.pool.can_advance(world.now()));
    world.advance();
    assert_eq!(world.outcomes[&waits].as_ref().unwrap_err(), &Failed::NotCommitted(Failure::TimedOut(None)));
    assert_eq!((world.pool.waiting(), world.pool.deadline()), (0, None));
    world.settle();
    assert_eq!(world.committed(under_way).size, 1);
}

#[test]
fn halves_that_wait_for_too_long_are_given_up() {
    let mut world = World::new(PoolOptions { retry_ms: 40, ..options() });
    let halved = [world.submit(&[put("x", "1")]), world.submit(&[put("y", "1")])];
    world.foreign_read("x", 1_000);
    world.advance();
    world.deliver(0, Luck::Done);
    // Another batch is begun as soon as this one has ended, and is never answered.
    let other = world.submit(&[put("z", "1")]);
    world.deliver(0, Luck::Done);
    world.advance();
    assert_eq!((world.pool.under_way(), world.pool.waiting()), (1, 0));
    while world.pool.deadline().is_some_and(|deadline| world.now() < deadline) {
        world.timestamp();
    }
    world.advance();
    for ticket in halved {
        assert_eq!(world.outcomes[&ticket].as_ref().unwrap_err(), &Failed::Conflict, "they met another");
    }
    world.settle();
    assert_eq!(world.committed(other).size, 1);
}

#[test]
fn no_batch_has_more_keys_than_its_client_may_use() {
    let mut world = World::new(PoolOptions { batch_keys_max: 4, ..options() });
    let tickets = ["a", "b", "c", "d"].map(|name| world.submit(&[get(name), put(name, "1")]));
    let alone = world.submit(&[put("e", "1"), put("f", "1"), put("g", "1"), put("h", "1"), put("i", "1")]);
    world.settle();
    assert_eq!(tickets.map(|ticket| world.committed(ticket).size), [2; 4]);
    assert_eq!(world.committed(alone).size, 1, "its client refuses it, if it is too large");
}

#[test]
fn a_commit_that_was_never_asked_for_has_no_unknown_outcome() {
    let told = |outcome: engine::Refusal| {
        let mut pool = Pool::new(CLUSTER, options());
        let (pool, mut out): (&mut dyn engine::Pool, _) = (&mut pool, engine::PoolOutput::default());
        pool.submit(Time(0), 1, engine::Work::Declared(vec![put("x", "1")])).expect("there is room");
        pool.advance(Time(0), &mut || Timestamp::new(1, ClientId(1)), &mut out);
        let request = out.requests.pop().expect("it begins");
        assert!(request.commits);
        pool.on_outcome(Time(0), request.batch, Err(outcome), &mut out);
        out.outcomes.pop().expect("it has ended").1.expect_err("nobody has answered")
    };
    assert_eq!(told(engine::Refusal::OutcomeUnknown), engine::Refusal::OutcomeUnknown);
    assert_eq!(told(engine::Refusal::Unavailable), engine::Refusal::Unavailable);
}

#[test]
fn one_batch_reads_at_a_time_so_that_the_next_sees_what_it_writes() {
    let mut world = World::new(PoolOptions { in_flight: 3, ..options() });
    let first = world.submit(&[get("x"), put("x", "1")]);
    world.advance();
    let second = world.submit(&[get("x")]);
    world.advance();
    assert_eq!((world.pool.under_way(), world.pool.waiting()), (1, 1));
    world.deliver(0, Luck::Done); // read at the store
    world.deliver(0, Luck::Done); // and back
    world.advance();
    assert_eq!(world.pool.under_way(), 2, "the first commits, the second reads");
    world.settle();
    assert_eq!((world.values(first), world.values(second)), (vec![None], some(&["1"])));
    assert_eq!(world.pool.counts().aborted, 0);
}

#[test]
fn those_that_only_read_share_batches_that_nobody_has_to_vote_on() {
    let mut world = World::new(PoolOptions { in_flight: 2, ..options() });
    let readers = [world.submit(&[get("x"), get("y")]), world.submit(&[get("y")])];
    let writers = [world.submit(&[get("x"), put("x", "1")]), world.submit(&[put("y", "1")])];
    world.settle();
    assert_eq!(readers.map(|ticket| (world.committed(ticket).size, world.committed(ticket).proof.is_some())), [(2, false); 2]);
    assert_eq!(writers.map(|ticket| (world.committed(ticket).size, world.committed(ticket).proof.is_some())), [(2, true); 2]);
    // By the paper's rule there is one queue, in the order of arrival.
    let mut world = World::new(PoolOptions { conflicts: ConflictRule::EndBatch, ..options() });
    let mixed = [world.submit(&[get("x")]), world.submit(&[put("y", "1")])];
    world.settle();
    assert_eq!(mixed.map(|ticket| world.committed(ticket).size), [2, 2]);
}

#[test]
fn batches_that_only_read_read_at_once() {
    let mut world = World::new(PoolOptions { in_flight: 3, ..options() });
    for _ in 0..5 {
        world.submit(&[get("x")]);
        world.advance();
    }
    assert_eq!((world.pool.under_way(), world.pool.waiting()), (3, 2));
    world.settle();
}

#[test]
fn reads_first_means_that_the_next_batch_reads_while_this_one_commits() {
    for (order, under_way) in [(Order::ReadAfterWrite, 1), (Order::WriteAfterRead, 2)] {
        let mut world = World::new(PoolOptions { order, ..options() });
        world.submit(&[put("x", "1")]);
        world.advance();
        world.submit(&[get("y"), put("y", "1")]);
        world.advance();
        assert_eq!(world.pool.under_way(), under_way);
        world.deliver(1, Luck::Done);
        world.deliver(1, Luck::Done);
        assert!(world.sent.len() <= 1, "{order:?}: it waits for room to commit");
        world.settle();
        assert_eq!(world.sent.len(), 2);
    }
}

#[test]
fn no_batch_grows_over_a_limit_and_one_too_large_by_itself_is_told_so() {
    let mut world = World::new(PoolOptions { size: BatchSize::Fixed(1_000), ..options() });
    let many: Vec<Operation> = (0..3_000).map(|at| get(&format!("k{at}"))).collect();
    let tickets = [world.submit(&many), world.submit(&many), world.submit(&[get("x")])];
    let too_many: Vec<Operation> = (0..5_000).map(|at| get(&format!("k{at}"))).collect();
    let too_large = world.submit(&too_many);
    world.settle();
    assert_eq!(tickets.map(|ticket| world.committed(ticket).size), [1, 2, 2]);
    assert!(matches!(world.outcomes[&too_large], Err(Failed::TooLarge(_))));
    let mut world = World::new(PoolOptions { batch_bytes_max: 10_000, ..options() });
    let value = "v".repeat(4_000);
    let tickets: Vec<u64> = (0..5).map(|at| world.submit(&[put(&format!("k{at}"), &value)])).collect();
    world.settle();
    assert_eq!(tickets.iter().map(|ticket| world.committed(*ticket).size).collect::<Vec<_>>(), [2, 2, 2, 2, 1]);
}

#[test]
fn the_pool_holds_no_more_than_it_may_and_nothing_empty() {
    let mut pool = Pool::new(CLUSTER, PoolOptions { members_max: 2, ..options() });
    let work = || Work::Declared(vec![get("x")]);
    assert_eq!(pool.submit(Time(0), 1, Work::Declared(Vec::new())), Err(NotTaken::Empty));
    pool.submit(Time(0), 1, work()).unwrap();
    pool.submit(Time(0), 2, work()).unwrap();
    assert_eq!(pool.submit(Time(0), 3, work()), Err(NotTaken::Full));
    pool.withdraw(1);
    pool.submit(Time(0), 3, work()).unwrap();
    assert_eq!(pool.waiting(), 2);
}

#[test]
fn an_answer_to_a_batch_that_is_gone_changes_nothing() {
    let mut pool = Pool::new(CLUSTER, options());
    let mut turn = cataphract::Output::default();
    pool.on_read(Time(0), 9, Ok(Vec::new()), &mut turn);
    pool.on_ended(Time(0), 9, Err(Failure::TimedOut(None)), &mut turn);
    assert!(turn.asks.is_empty() && turn.outcomes.is_empty());
}
