//! Nodes over real TLS on the loopback: what they do for members, what they tell strangers, what liars cost.

use std::collections::{BTreeMap, BTreeSet};

use crypto::{BatchSigner, Signatures};
use runtime::frame::{FRAME_VERSION, Greeting, Role};
use runtime::{Configuration, Limits, NodeError, NotTaken, PeerState};
use store::{Memory, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toy::Flaw;
use types::limits::FRAME_BYTES_MAX;
use types::{ClusterId, Session};

use crate::fixture::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_come_back_as_signed_answers() {
    let server = Server::start(0, Limits::default()).await;
    let mut client = Client::start(server.address());
    client.asks_and_is_answered(21).await;
    for number in 0..1_000 {
        client.ask(number).await;
    }
    let mut answered = BTreeSet::new();
    while answered.len() < 1_000 {
        match within(client.events.recv()).await.expect("the client runs") {
            Told::Answer(doubled) => {
                assert_eq!(doubled.double, 2 * doubled.number);
                assert!(answered.insert(doubled.number), "each question is answered once");
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }
    let text = server.metrics.to_text();
    assert!(text.contains("bezant_statements_signed_total 1001\n"), "{text}");
    assert!(text.contains("bezant_messages_received_total 1001\n"), "{text}");
    assert!(text.contains("bezant_connections 1\n"), "{text}");
    assert!(client.metrics.to_text().contains("bezant_verify_failures_total 0\n"));
    let machine = within(server.node.stop()).await.expect("its disk is well");
    assert_eq!((machine.answered(), machine.is_pending()), (1_001, false));
}

#[tokio::test]
async fn replicas_are_members_too_and_the_greater_dials() {
    let mut zero = Server::start(0, Limits::default()).await;
    let any = "127.0.0.1:0".parse().expect("an address");
    // Replica 1 is told its own address as well, and must not dial itself.
    let peers = BTreeMap::from([(replica(0), zero.address()), (replica(1), any), (replica(2), any)]);
    let mut one = Server::start_at(any, Doubler::new(replica(1)), peers, Limits::default()).await;
    let handle = one.node.handle();
    within(handle.peers_until(|peers| peers.get(&replica(0)) == Some(&PeerState::Connected))).await;
    assert_eq!(handle.peers().get(&replica(2)), Some(&PeerState::Awaited), "the greater name dials");
    handle.command(AskPeer(replica(0), 4)).await.expect("it runs");
    assert_eq!(within(one.events.recv()).await, Some(Doubled { signer: replica(0), number: 4, double: 8, count: 1 }));
    // The same connection serves both.
    zero.node.handle().command(AskPeer(replica(1), 5)).await.expect("it runs");
    assert_eq!(within(zero.events.recv()).await, Some(Doubled { signer: replica(1), number: 5, double: 10, count: 1 }));
    // Nobody is at the other end: lost and counted, as on any network.
    zero.node.handle().command(AskPeer(replica(3), 5)).await.expect("it runs");
    eventually("it is counted", || zero.metrics.unsent("not_connected") == 1).await;
    // To itself it speaks without a connection, and checks what it hears like anything else.
    zero.node.handle().command(AskPeer(replica(0), 6)).await.expect("it runs");
    assert_eq!(within(zero.events.recv()).await, Some(Doubled { signer: replica(0), number: 6, double: 12, count: 2 }));
}

#[tokio::test]
async fn peers_with_unknown_keys_are_refused_with_a_reason() {
    let server = Server::start(0, Limits::default()).await;
    let mut raw = Raw::connect(server.address(), Shows::Nothing).await.expect("the handshake ends well");
    let Greeting::Refused(reason) = raw.greeting().await else { panic!("nobody without a certificate is welcome") };
    assert!(reason.contains("no client certificate was presented"), "{reason}");
    raw.is_closed().await;
    eventually("it is counted", || server.metrics.closed("no_certificate") == 1).await;

    // Client 4 believes in a cluster that has it; the server's has only three.
    let stranger = Client::start_as(4, Session(1), &cluster(CLUSTER, 4), server.address(), Limits::default());
    stranger.peers_until(|state| matches!(state, PeerState::Refused(reason) if reason.contains("is not a member of cluster"))).await;
    drop(stranger);
    eventually("it is counted", || server.metrics.closed("unknown_key") >= 1).await;

    // The keys are right, the cluster is not.
    let lost = Client::start_as(1, Session(1), &cluster(ClusterId::new([8; 16]), 3), server.address(), Limits::default());
    lost.peers_until(|state| matches!(state, PeerState::Refused(reason) if reason.contains("this is cluster 0707"))).await;
    drop(lost);

    let mut raw = Raw::connect(server.address(), Shows::Key(client_secret(1))).await.expect("the handshake ends well");
    raw.send(&Greeting::Hello { cluster: CLUSTER, configuration: configuration(), role: Role::Replica }.to_frame()).await;
    let Greeting::Refused(reason) = raw.greeting().await else { panic!("a client is no replica") };
    assert!(reason.contains("which is no replica"), "{reason}");

    // Whose cluster is of another shape is told so.
    let mut raw = Raw::connect(server.address(), Shows::Key(client_secret(1))).await.expect("the handshake ends well");
    let shape = "ff".repeat(16) + &configuration().to_text()[32..];
    let other = Configuration::from_text(&shape).expect("as long as before");
    raw.send(&Greeting::Hello { cluster: CLUSTER, configuration: other, role: Role::Client(Session(1)) }.to_frame()).await;
    let Greeting::Refused(reason) = raw.greeting().await else { panic!("the two would not understand each other") };
    assert!(
        reason.contains("your cluster.toml differs from this replica's in faults, shards, placement, signatures or pending_min"),
        "{reason}"
    );
    eventually("it is counted", || server.metrics.closed("wrong_configuration") == 1).await;
    // Who only knows another client beside it is as welcome as ever.
    Client::start_as(1, Session(2), &cluster(CLUSTER, 4), server.address(), Limits::default()).asks_and_is_answered(2).await;

    let mut raw = Raw::connect(server.address(), Shows::Key(client_secret(1))).await.expect("the handshake ends well");
    raw.send(&frame(FRAME_VERSION + 1, &[0; 30])).await;
    let Greeting::Refused(reason) = raw.greeting().await else { panic!("nobody speaks that version yet") };
    assert!(reason.contains("format version"), "{reason}");
    Client::start(server.address()).asks_and_is_answered(1).await;
}

#[tokio::test]
async fn a_dialler_believes_only_the_key_it_expects() {
    // Replica 5 listens where the client expects replica 0.
    let server = Server::start(5, Limits::default()).await;
    let client = Client::start(server.address());
    client.peers_until(|state| matches!(state, PeerState::WrongKey(reason) if reason.contains("the peer there holds the key"))).await;
    eventually("the server counts it", || server.metrics.closed("handshake") >= 1).await;
}

#[tokio::test]
async fn invalid_input_closes_only_its_own_connection() {
    // Whoever lies comes back at once, to lie again.
    let server = Server::start(0, Limits { expelled_ms: 0, ..Limits::default() }).await;
    let mut honest = Client::start_as(2, Session(1), &cluster(CLUSTER, 3), server.address(), Limits::default());
    honest.asks_and_is_answered(0).await;

    let mut plain = TcpStream::connect(server.address()).await.expect("it listens");
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("it reads");
    within(plain.read_to_end(&mut Vec::new())).await.ok();
    eventually("plain text is no handshake", || server.metrics.closed("handshake") == 1).await;
    let mut plain = TcpStream::connect(server.address()).await.expect("it listens");
    plain.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await.expect("it reads");
    drop(plain);
    eventually("half a handshake is none", || server.metrics.closed("handshake") == 2).await;
    let cut = Raw::connect(server.address(), Shows::CutCertificate(client_secret(1))).await;
    eventually("half a certificate is none", || server.metrics.closed("handshake") == 3).await;
    drop(cut);

    let mut raw = Raw::connect(server.address(), Shows::Key(client_secret(1))).await.expect("the handshake ends well");
    raw.send(&frame(FRAME_VERSION, &[77; 30])).await;
    raw.is_closed().await;
    let mut raw = Raw::connect(server.address(), Shows::Key(client_secret(1))).await.expect("the handshake ends well");
    raw.send(&[255; 64]).await;
    raw.is_closed().await;
    eventually("a greeting must be one", || server.metrics.closed("greeting") == 2).await;

    let too_long = u32::try_from(FRAME_BYTES_MAX + 1).expect("the limit fits").to_le_bytes();
    let mut trailing = vec![0; 4];
    types::codec::encode_sequence(&[Message::Ask(1)], &mut trailing);
    trailing.push(0);
    for (label, bytes) in [
        ("frame_too_long", too_long.to_vec()),
        ("frame_empty", frame(FRAME_VERSION, &[])),
        ("frame_version", frame(FRAME_VERSION + 1, &[0; 4])),
        ("body_truncated", frame(FRAME_VERSION, &[0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0])),
        ("body_over_limit", frame(FRAME_VERSION, &[0, 0, 0, 0, 254, 255, 255, 255, 255])),
        ("body_unknown_tag", frame(FRAME_VERSION, &[0, 0, 0, 0, 1, 0, 0, 0, 99])),
        ("body_trailing", frame(FRAME_VERSION, &trailing)),
        ("body_not_canonical", frame(FRAME_VERSION, &[1, 0, 0, 0, 0, 0, 0, 0])),
    ] {
        let mut raw = Raw::welcomed(server.address()).await;
        raw.send(&bytes).await;
        raw.is_closed().await;
        eventually(label, || server.metrics.closed(label) == 1).await;
    }
    let mut raw = Raw::welcomed(server.address()).await;
    raw.send(&messages(&[Message::Ask(1)])[..7]).await;
    drop(raw);
    eventually("cut", || server.metrics.closed("cut") == 1).await;

    // The connection that lied about nothing is still the first one.
    honest.asks_and_is_answered(1).await;
    assert_eq!(honest.metrics.closed("ended"), 0);
    assert!(server.metrics.to_text().contains("bezant_incoming_bytes 0\n"));
}

#[tokio::test]
async fn bad_messages_are_dropped_and_a_bad_signature_expels_its_sender() {
    let server = Server::start(0, Limits { rejections_max: 4, expelled_ms: 0, ..Limits::default() }).await;
    let mut raw = Raw::welcomed(server.address()).await;
    let doubled = Doubled { signer: replica(3), number: 1, double: 3, count: 1 };
    let batch_signer = BatchSigner::new(replica_secret(4), CLUSTER, replica(3), Signatures::Ed25519);
    let forge = || Box::new(batch_signer.sign(&[crypto::leaf(CLUSTER, replica(3), &doubled)]).remove(0));
    let unknown = Doubled { signer: replica(77), ..doubled };
    raw.send(&messages(&[Message::Answer(unknown, forge()), Message::Ask(7)])).await;
    eventually("what nobody can have signed is dropped", || server.metrics.rejected("unknown_signer") == 1).await;
    eventually("its neighbour is answered", || server.metrics.to_text().contains("bezant_statements_signed_total 1\n")).await;
    raw.send(&messages(&vec![Message::Answer(unknown, forge()); 3])).await;
    raw.is_closed().await;
    eventually("it is closed", || server.metrics.closed("rejections") == 1).await;

    let mut raw = Raw::welcomed(server.address()).await;
    raw.send(&messages(&[Message::Answer(doubled, forge())])).await;
    raw.is_closed().await;
    eventually("the forger is closed at once", || server.metrics.closed("rejections") == 2).await;
    // What others can cause without end is logged so often a minute, and then counted: each lie makes two lines.
    for lies in 3..=8 {
        let mut raw = Raw::welcomed(server.address()).await;
        raw.send(&messages(&[Message::Answer(doubled, forge())])).await;
        raw.is_closed().await;
        eventually("it is closed", || server.metrics.closed("rejections") == lies).await;
    }
    let text = server.metrics.to_text();
    let left_out = text.lines().find_map(|line| line.strip_prefix("bezant_log_lines_left_out_total "));
    assert!(left_out.is_some_and(|lines| lines.parse::<u64>().is_ok_and(|lines| lines >= 9)), "{text}");
    assert_eq!(server.metrics.rejected("bad_signature"), 7);
}

#[tokio::test]
async fn who_says_that_it_knows_more_has_no_more_bad_signatures_on_many_connections_than_on_one() {
    let server = Server::start(0, Limits::default()).await;
    let text = configuration().to_text();
    let ahead = Configuration::from_text(&(text[..text.len() - 16].to_owned() + &"ff".repeat(8))).expect("as long as before");
    let doubled = Doubled { signer: replica(3), number: 1, double: 3, count: 1 };
    let batch_signer = BatchSigner::new(replica_secret(4), CLUSTER, replica(3), Signatures::Ed25519);
    let forged = Message::Answer(doubled, Box::new(batch_signer.sign(&[crypto::leaf(CLUSTER, replica(3), &doubled)]).remove(0)));
    let few = Limits::default().rejections_max as usize - 1;
    let mut raw = Raw::welcomed_as(server.address(), ahead).await;
    raw.send(&messages(&vec![forged.clone(); few])).await;
    eventually("it is believed at first", || server.metrics.rejected("bad_signature") == few as u64).await;
    let mut raw = Raw::welcomed_as(server.address(), ahead).await;
    raw.send(&messages(&vec![forged; few])).await;
    raw.is_closed().await;
    eventually("it is refused now", || server.metrics.closed("rejections") == 1).await;
}

#[tokio::test]
async fn a_member_that_lied_is_refused_for_a_while_and_nobody_else() {
    let server = Server::start(0, Limits { expelled_ms: 600_000, ..Limits::default() }).await;
    let slow = Limits { redial_ms: 60_000, redial_max_ms: 60_000, ..Limits::default() };
    let same = Client::start_as(1, Session(1), &cluster(CLUSTER, 3), server.address(), slow.clone());
    let mut other = Client::start_as(2, Session(1), &cluster(CLUSTER, 3), server.address(), slow.clone());
    same.connected().await;
    other.connected().await;
    let mut raw = Raw::welcomed(server.address()).await;
    raw.send(&frame(FRAME_VERSION, &[])).await;
    raw.is_closed().await;
    // Its other connections end with the one on which it lied.
    same.peers_until(|state| matches!(state, PeerState::Unreachable(_))).await;
    eventually("it is counted", || server.metrics.closed("expelled") == 1).await;
    let words = "client c1 sent what no correct member sends, and is refused for another";
    let again = Client::start_as(1, Session(2), &cluster(CLUSTER, 3), server.address(), slow);
    again.peers_until(|state| matches!(state, PeerState::Refused(reason) if reason.contains(words))).await;
    other.asks_and_is_answered(1).await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_disconnected_and_others_are_served() {
    let limits = Limits { outgoing_bytes_max: 1 << 20, ..Limits::default() };
    let server = Server::start(0, limits).await;
    let mut raw = Raw::welcomed(server.address()).await;
    let greedy = messages(&vec![Message::Fill(1 << 18); 200]);
    raw.send(&greedy).await;
    eventually("it is dropped", || server.metrics.closed("not_reading") == 1).await;
    eventually("its queue is gone", || server.metrics.to_text().contains("bezant_outgoing_bytes 0\n")).await;
    Client::start(server.address()).asks_and_is_answered(1).await;
}

#[tokio::test]
async fn who_does_not_read_is_answered_no_further_and_closed_in_the_end() {
    // Far more answers than what may wait unread, and far fewer than what closes the connection at once.
    let server = Server::start(0, Limits { unread_bytes_max: 1 << 20, ..Limits::default() }).await;
    let mut raw = Raw::welcomed(server.address()).await;
    raw.send(&messages(&vec![Message::Fill(1 << 18); 200])).await;
    let mut other = Client::start_as(2, Session(1), &cluster(CLUSTER, 3), server.address(), Limits::default());
    // In as many turns the node could answer all of it.
    for number in 0..40 {
        other.asks_and_is_answered(number).await;
    }
    let text = server.metrics.to_text();
    let waiting = text.lines().find_map(|line| line.strip_prefix("bezant_outgoing_bytes ")).and_then(|bytes| bytes.parse::<usize>().ok());
    // What one turn answers may come on top.
    assert!(waiting.is_some_and(|bytes| (1 << 20..11 << 20).contains(&bytes)), "{waiting:?} bytes wait");
    // Nothing is lost by that.
    raw.reads(200 << 18).await;
    raw.send(&messages(&[Message::Ask(1)])).await;
    eventually("its next question is answered", || server.metrics.to_text().contains("bezant_statements_signed_total 41\n")).await;
    drop(raw);

    let server = Server::start(0, Limits { unread_bytes_max: 1 << 20, write_timeout_ms: 50, ..Limits::default() }).await;
    let mut raw = Raw::welcomed(server.address()).await;
    raw.send(&messages(&vec![Message::Fill(1 << 18); 800])).await;
    eventually("it is closed", || server.metrics.closed("not_reading") == 1).await;
    eventually("its queue is gone", || server.metrics.to_text().contains("bezant_outgoing_bytes 0\n")).await;
    eventually("so is what it asked", || server.metrics.to_text().contains("bezant_incoming_bytes 0\n")).await;
    let text = server.metrics.to_text();
    let stepped = text.lines().find_map(|line| line.strip_prefix("bezant_turn_inputs_sum ")).and_then(|inputs| inputs.parse::<f64>().ok());
    assert!(stepped.is_some_and(|inputs| inputs < 400.0), "nobody is there for the answers to {stepped:?} questions");
}

#[tokio::test]
async fn a_large_frame_that_hardly_comes_loses_the_room_that_it_holds() {
    let server = Server::start(0, Limits { write_timeout_ms: 50, ..Limits::default() }).await;
    let mut raw = Raw::welcomed(server.address()).await;
    let begun = [&u32::try_from(FRAME_BYTES_MAX).expect("the limit fits").to_le_bytes(), [FRAME_VERSION, 0, 0, 0, 0].as_slice()].concat();
    raw.send(&begun).await;
    let held = || server.metrics.to_text().contains("bezant_incoming_bytes 16777216\n");
    eventually("it holds room", held).await;
    while server.metrics.closed("slow_frame") == 0 {
        raw.send(&[0]).await;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    eventually("it is free again", || server.metrics.to_text().contains("bezant_incoming_bytes 0\n")).await;
}

#[tokio::test]
async fn a_small_frame_holds_no_room_until_all_of_it_has_come_and_must_not_hardly_come() {
    let server = Server::start(0, Limits { write_timeout_ms: 50, ..Limits::default() }).await;
    let mut raw = Raw::welcomed(server.address()).await;
    // It claims to decode to as much as any frame may.
    let (length, omitted) = (60_000_u32, u32::try_from(FRAME_BYTES_MAX - 60_000).expect("the limit fits"));
    raw.send(&[&length.to_le_bytes(), [FRAME_VERSION].as_slice(), &omitted.to_le_bytes()].concat()).await;
    let trickling = async {
        while server.metrics.closed("slow_frame") == 0 {
            assert!(server.metrics.to_text().contains("bezant_incoming_bytes 0\n"), "it holds room for what has not come");
            raw.send(&[0]).await;
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    within(trickling).await;
}

#[tokio::test]
async fn a_silent_peer_is_disconnected_at_every_stage() {
    let limits =
        Limits { greeting_timeout_ms: 300, heartbeat_ms: 20, silence_timeout_ms: 200, unauthenticated_max: 1, ..Limits::default() };
    let server = Server::start(0, limits).await;
    let first = TcpStream::connect(server.address()).await.expect("it listens");
    let second = TcpStream::connect(server.address()).await.expect("it listens");
    eventually("the first makes way for the second", || server.metrics.closed("too_many_unauthenticated") == 1).await;
    eventually("no handshake comes", || server.metrics.closed("greeting_timeout") == 1).await;
    drop((first, second));
    let mut raw = Raw::welcomed(server.address()).await;
    eventually("nothing more comes", || server.metrics.closed("silent") >= 1).await;
    raw.is_closed().await;
}

#[tokio::test]
async fn a_client_comes_back_to_a_server_that_was_restarted() {
    let server = Server::start(0, Limits::default()).await;
    let address = server.address();
    let limits = Limits { redial_ms: 5, redial_max_ms: 20, ..Limits::default() };
    let mut client = Client::start_as(1, Session(1), &cluster(CLUSTER, 3), address, limits);
    client.asks_and_is_answered(1).await;
    within(server.node.stop()).await.expect("its disk is well");
    client.peers_until(|state| *state != PeerState::Connected).await;
    let server = Server::start_at(address, Doubler::new(replica(0)), BTreeMap::new(), Limits::default()).await;
    client.asks_and_is_answered(2).await;
    drop(server);
    client.peers_until(|state| matches!(state, PeerState::Down(reason) if reason.contains("refused"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_answers_everything_that_was_taken_in() {
    let server = Server::start(0, Limits { turn_inputs_max: 7, ..Limits::default() }).await;
    let mut client = Client::start(server.address());
    client.asks_and_is_answered(0).await;
    let asking = tokio::spawn({
        let handle = client.node.handle();
        async move {
            for number in 1..2_000 {
                if handle.command(Order::Say(replica(0), Message::Ask(number))).await.is_err() {
                    break;
                }
            }
        }
    });
    within(client.events.recv()).await.expect("some are answered");
    let machine = within(server.node.stop()).await.expect("its disk is well");
    assert!(!machine.is_pending(), "what was answered is durable");
    // Question 0 and the first of the others have been seen to be answered.
    for _ in 2..machine.answered() {
        within(client.events.recv()).await.expect("all that were stepped through are answered");
    }
    within(asking).await.expect("asking does not panic");
    let handle = client.node.handle();
    within(client.node.stop()).await.expect("a client has no disk");
    assert!(matches!(handle.try_command(Order::RingAfterMs(1)), Err(NotTaken::Stopped(_))));
    assert!(handle.command(Order::RingAfterMs(1)).await.is_err());
}

#[tokio::test]
async fn a_client_that_goes_on_asking_still_reads_all_that_a_stopping_server_had_written() {
    let limits = Limits { write_timeout_ms: 30_000, flush_timeout_ms: 30_000, ..Limits::default() };
    let server = Server::start(0, limits).await;
    let mut raw = Raw::welcomed(server.address()).await;
    // More than what the system takes of a connection that nobody reads.
    raw.send(&messages(&vec![Message::Fill(1 << 18); 40])).await;
    let metrics = server.metrics.clone();
    eventually("it is answered", || metrics.to_text().contains("bezant_turn_inputs_sum 40.0\n")).await;
    let handle = server.node.handle();
    let stopping = tokio::spawn(server.node.stop());
    eventually("it is stopping", || matches!(handle.try_command(AskPeer(replica(1), 1)), Err(NotTaken::Stopped(_)))).await;
    raw.send(&messages(&[Message::Ask(1)])).await;
    eventually("it still hears", || metrics.to_text().contains("bezant_messages_received_total 41\n")).await;
    raw.send(&messages(&[Message::Ask(1)])).await;
    raw.reads(40 << 18).await;
    raw.is_closed().await;
    drop(raw);
    let machine = within(stopping).await.expect("it does not panic").expect("its disk is well");
    assert_eq!(machine.answered(), 0, "it answers nobody any more");
}

#[tokio::test]
async fn when_the_disk_fails_the_node_sends_nothing_and_stops() {
    let any = "127.0.0.1:0".parse().expect("an address");
    let medium = Memory::new("a disk that fails");
    let machine = Doubler::open(replica(0), &medium, Options::default(), Flaw::None).expect("an empty medium can be opened");
    let mut server = Server::start_at(any, machine, BTreeMap::new(), Limits::default()).await;
    let mut client = Client::start(server.address());
    client.asks_and_is_answered(1).await;
    medium.fail_next_sync();
    client.ask(2).await;
    let error = within(server.node.failed()).await;
    assert!(matches!(error, NodeError::Persist(_)), "{error}");
    assert!(matches!(within(server.node.failed()).await, NodeError::Over));
    client.peers_until(|state| *state != PeerState::Connected).await;
    assert!(client.events.try_recv().is_err(), "what is not durable is not said");
    assert!(server.metrics.to_text().contains("bezant_statements_signed_total 1\n"));
    assert!(matches!(within(server.node.stop()).await, Err(NodeError::Over)));
}

#[tokio::test]
async fn commands_wait_when_too_many_do_and_timers_ring() {
    let server = Server::start(0, Limits::default()).await;
    let limits = Limits { commands_max: 1, ..Limits::default() };
    let mut client = Client::start_as(1, Session(1), &cluster(CLUSTER, 3), server.address(), limits);
    let handle = client.node.handle();
    // On this one-threaded runtime the loop cannot run in between.
    handle.try_command(Order::RingAfterMs(1)).expect("there is room for one");
    assert!(matches!(handle.try_command(Order::RingAfterMs(1)), Err(NotTaken::Busy(_))));
    assert_eq!(within(client.events.recv()).await, Some(Told::Rang));
    for _ in 0..10 {
        within(handle.command(Order::RingAfterMs(0))).await.expect("it waits for room");
    }
    assert_eq!(within(client.events.recv()).await, Some(Told::Rang));
}

#[tokio::test]
async fn a_client_that_has_all_its_connections_is_refused_in_words() {
    let server = Server::start(0, Limits { client_connections_max: 2, ..Limits::default() }).await;
    let start = |client, session| Client::start_as(client, Session(session), &cluster(CLUSTER, 3), server.address(), Limits::default());
    let mut clients = [start(1, 1), start(1, 2)];
    for client in &clients {
        client.connected().await;
    }
    let further = start(1, 3);
    let words = "client c1 has 2 connections open here, as many as a client may have";
    further.peers_until(|state| matches!(state, PeerState::Refused(reason) if reason.contains(words))).await;
    start(2, 1).asks_and_is_answered(5).await;
    for client in &mut clients {
        client.asks_and_is_answered(5).await;
    }
    assert!(server.metrics.closed("too_many_connections") >= 1);
    // Whoever comes again as the same session has its place.
    start(1, 2).asks_and_is_answered(6).await;
    // A place that was given back is free.
    let [first, _] = clients;
    drop(first);
    further.connected().await;
}

#[tokio::test]
async fn where_all_places_are_taken_clients_have_equal_parts_and_replicas_their_own() {
    let server = Server::start(0, Limits { clients_connections_max: 2, ..Limits::default() }).await;
    let slow = Limits { redial_ms: 60_000, redial_max_ms: 60_000, ..Limits::default() };
    let start = |client, session| Client::start_as(client, Session(session), &cluster(CLUSTER, 3), server.address(), slow.clone());
    let oldest = start(1, 1);
    oldest.connected().await;
    let mut newer = start(1, 2);
    newer.connected().await;
    let mut second = start(2, 1);
    second.asks_and_is_answered(1).await;
    oldest.peers_until(|state| matches!(state, PeerState::Unreachable(_))).await;
    let words = "2 connections of clients are open here, as many as there may be";
    start(3, 1).peers_until(|state| matches!(state, PeerState::Refused(reason) if reason.contains(words))).await;
    let peers = BTreeMap::from([(replica(0), server.address())]);
    let any = "127.0.0.1:0".parse().expect("an address");
    let one = Server::start_at(any, Doubler::new(replica(1)), peers, Limits::default()).await;
    let handle = one.node.handle();
    within(handle.peers_until(|peers| peers.get(&replica(0)) == Some(&PeerState::Connected))).await;
    newer.asks_and_is_answered(2).await;
    second.asks_and_is_answered(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_strangers_keep_nobody_out() {
    let patient = Limits { greeting_timeout_ms: 600_000, ..Limits::default() };
    let server = Server::start(0, patient).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(server.address()).await.expect("it listens"));
    }
    eventually("some make way", || server.metrics.closed("too_many_unauthenticated") == 300 - 256).await;
    for client in [1, 2] {
        let mut client = Client::start_as(client, Session(1), &cluster(CLUSTER, 3), server.address(), Limits::default());
        within(client.asks_and_is_answered(7)).await;
        assert!(!client.metrics.to_text().contains("bezant_dials_failed_total 1"), "the first attempt succeeds");
    }
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_that_floods_waits_for_itself() {
    // One question a turn, each with a signature: what has arrived is not soon answered.
    let server = Server::start(0, Limits { turn_inputs_max: 1, ..Limits::default() }).await;
    let mut other = Client::start_as(2, Session(1), &cluster(CLUSTER, 3), server.address(), Limits::default());
    other.asks_and_is_answered(1).await;
    let (mut raw, flood) = (Raw::welcomed(server.address()).await, 40_000);
    for _ in 0..10 {
        raw.send(&messages(&vec![Message::Ask(1); flood / 10])).await;
    }
    eventually("all of it is there", || server.metrics.to_text().contains(&format!("bezant_messages_received_total {}\n", flood + 1)))
        .await;
    other.asks_and_is_answered(2).await;
    let text = server.metrics.to_text();
    let answered = text.lines().find_map(|line| line.strip_prefix("bezant_statements_signed_total ")).and_then(|count| count.parse().ok());
    assert!(answered.is_some_and(|answered: usize| answered < flood), "{answered:?} came before");
}

#[tokio::test]
async fn one_member_that_floods_is_held_back_and_everything_arrives() {
    // Room for two small frames at a time.
    let server = Server::start(0, Limits { incoming_bytes_max: 8_000, turn_inputs_max: 3, ..Limits::default() }).await;
    let mut client = Client::start(server.address());
    client.connected().await;
    for number in 0..500 {
        client.ask(number).await;
    }
    for _ in 0..500 {
        within(client.events.recv()).await.expect("every question is answered");
    }
    let mut raw = Raw::welcomed(server.address()).await;
    raw.send(&messages(&vec![Message::Ask(1); 4_000])).await;
    eventually("a frame larger than the room passes alone", || server.metrics.to_text().contains("bezant_statements_signed_total 4500\n"))
        .await;
}
