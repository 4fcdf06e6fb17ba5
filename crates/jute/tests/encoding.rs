//! What is written is read back, known frames have the bytes that ZooKeeper's documentation gives them, and arbitrary bytes are harmless.

use bytes::Bytes;
use jute::{
    Acl, Answer, ConnectRequest, Create, CreateMode, ErrorCode, EventKind, Id, Malformed, NotARequest, Numbered, Operation,
    OperationResult, ReadOperation, Reply, Request, Stat, WatchKind, WatchMode, WatchedEvent, opcode,
};
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn known_frames_have_these_bytes() {
    let mut out = Vec::new();
    Numbered { xid: 1, request: Request::GetData { path: "/a".into(), watch: true } }.encode(&mut out);
    assert_eq!(hex::encode(&out), "0000000100000004000000022f6101");
    out.clear();
    ConnectRequest { timeout_ms: 10_000, password: vec![0; 16], read_only: Some(false), ..ConnectRequest::default() }.encode(&mut out);
    assert_eq!(hex::encode(&out), "00000000000000000000000000002710000000000000000000000010".to_owned() + &"00".repeat(17));
    out.clear();
    let event = WatchedEvent { kind: EventKind::ChildrenChanged, path: "/a".into() };
    Reply { xid: -1, zxid: 7, answer: Ok(Answer::Event(event)) }.encode_frame(&mut out);
    assert_eq!(hex::encode(&out), "0000001effffffff0000000000000007000000000000000400000003000000022f61");
    out.clear();
    Reply { xid: 3, zxid: 9, answer: Err(ErrorCode::NoNode) }.encode_frame(&mut out);
    assert_eq!(hex::encode(&out), "00000010000000030000000000000009ffffff9b");
}

#[test]
fn an_old_client_does_not_say_whether_it_only_reads() {
    let mut out = Vec::new();
    let old = ConnectRequest { timeout_ms: 1, password: vec![7; 16], ..ConnectRequest::default() };
    old.encode(&mut out);
    assert_eq!(ConnectRequest::decode(&out), Ok(old));
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let head = |opcode: i32| [1_i32.to_be_bytes(), opcode.to_be_bytes()].concat();
    assert_eq!(Numbered::decode(&[0, 0, 0]), Err(NotARequest::Head));
    assert_eq!(Numbered::decode(&head(77)), Err(NotARequest::Unknown { xid: 1, opcode: 77 }));
    let record = |opcode, rest: &[u8]| match Numbered::decode(&[head(opcode), rest.to_vec()].concat()) {
        Err(NotARequest::Record { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(record(opcode::GET_DATA, &[0x7f, 0xff, 0xff, 0xff]), Malformed::Truncated);
    assert_eq!(record(opcode::GET_DATA, &[0x80, 0, 0, 0]), Malformed::Length("a string"));
    assert_eq!(record(opcode::SET_WATCHES, &[0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]), Malformed::Truncated);
    assert_eq!(record(opcode::SYNC, &[0, 0, 0, 1, 0xff]), Malformed::NotText);
    assert_eq!(record(opcode::SYNC, &[0, 0, 0, 1, b'/', 0]), Malformed::Trailing);
    assert_eq!(record(opcode::EXISTS, &[0, 0, 0, 1, b'/', 2]), Malformed::Unknown("a flag"));
    assert_eq!(record(opcode::CHECK_WATCHES, &[0, 0, 0, 1, b'/', 0, 0, 0, 9]), Malformed::Unknown("the kind of a watch"));
    let mut endless = head(opcode::MULTI);
    for _ in 0..=jute::MULTI_OPERATIONS_MAX {
        endless.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'/', 0, 0, 0, 0]);
    }
    assert!(matches!(Numbered::decode(&endless), Err(NotARequest::Record { reason: Malformed::Length("a multi"), .. })));
}

fn path() -> impl Strategy<Value = String> {
    "/[a-zß]{0,4}"
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    proptest::option::of(vec(any::<u8>(), 0..20).prop_map(Bytes::from))
}

fn acl() -> impl Strategy<Value = Acl> {
    (any::<i32>(), "[a-z]{0,5}", "[a-z:]{0,5}").prop_map(|(permissions, scheme, id)| Acl { permissions, id: Id { scheme, id } })
}

fn create() -> impl Strategy<Value = Create> {
    let mode = prop_oneof![
        Just(CreateMode::Persistent),
        Just(CreateMode::Ephemeral),
        Just(CreateMode::Container),
        any::<i64>().prop_map(|ttl_ms| CreateMode::Ttl { ttl_ms }),
    ];
    (path(), data(), vec(acl(), 0..3), mode, any::<bool>(), any::<bool>()).prop_map(|(path, data, acl, mode, sequential, wants_stat)| {
        let plain = matches!(mode, CreateMode::Persistent | CreateMode::Ephemeral);
        let sequential = sequential && mode != CreateMode::Container;
        Create { path, data, acl, mode, sequential, wants_stat: wants_stat || !plain }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        create().prop_map(Operation::Create),
        (path(), any::<i32>()).prop_map(|(path, version)| Operation::Delete { path, version }),
        (path(), data(), any::<i32>()).prop_map(|(path, data, version)| Operation::SetData { path, data, version }),
        (path(), any::<i32>()).prop_map(|(path, version)| Operation::Check { path, version }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let kind = prop_oneof![Just(WatchKind::Any), Just(WatchKind::Persistent)];
    let paths = || vec(path(), 0..3);
    prop_oneof![
        operation().prop_map(Request::from),
        vec(operation(), 0..5).prop_map(Request::Multi),
        vec(path(), 0..4).prop_map(|paths| Request::MultiRead(paths.into_iter().map(|path| ReadOperation::GetData { path }).collect())),
        (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        (path(), vec(acl(), 0..3), any::<i32>()).prop_map(|(path, acl, version)| Request::SetAcl { path, acl, version }),
        (path(), kind).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        path().prop_map(|path| Request::AddWatch { path, mode: WatchMode::PersistentRecursive }),
        ("[a-z]{1,6}", vec(any::<u8>(), 0..9))
            .prop_map(|(scheme, credentials)| Request::Auth { scheme, credentials: Bytes::from(credentials) }),
        (any::<i64>(), paths(), paths(), paths(), paths(), paths()).prop_map(
            |(relative_zxid, data, exist, child, persistent, persistent_recursive)| {
                Request::SetWatches(jute::SetWatches { relative_zxid, data, exist, child, persistent, persistent_recursive })
            }
        ),
        Just(Request::Ping),
        Just(Request::WhoAmI),
        Just(Request::CloseSession),
    ]
}

fn answer() -> impl Strategy<Value = (i32, Answer)> {
    let stat = || (any::<i64>(), any::<i32>()).prop_map(|(long, int)| Stat { pzxid: long, aversion: int, czxid: long, ..Stat::default() });
    let results = vec(
        prop_oneof![
            path().prop_map(|path| OperationResult::Create { path }),
            (path(), stat()).prop_map(|(path, stat)| OperationResult::CreateWithStat { path, stat }),
            Just(OperationResult::Delete),
            Just(OperationResult::Check),
            stat().prop_map(|stat| OperationResult::SetData { stat }),
            any::<i32>().prop_map(OperationResult::Error),
            (data(), stat()).prop_map(|(data, stat)| OperationResult::GetData { data, stat }),
            vec(path(), 0..3).prop_map(|children| OperationResult::GetChildren { children }),
        ],
        0..5,
    );
    prop_oneof![
        Just((opcode::DELETE, Answer::Empty)),
        path().prop_map(|path| (opcode::CREATE, Answer::Path(path))),
        (path(), stat()).prop_map(|(path, stat)| (opcode::CREATE_TTL, Answer::PathAndStat { path, stat })),
        (data(), stat()).prop_map(|(data, stat)| (opcode::GET_DATA, Answer::Data { data, stat })),
        (vec(acl(), 0..3), stat()).prop_map(|(acl, stat)| (opcode::GET_ACL, Answer::Acl { acl, stat })),
        (vec(path(), 0..4), stat()).prop_map(|(names, stat)| (opcode::GET_CHILDREN2, Answer::NamesAndStat { names, stat })),
        results.prop_map(|results| (opcode::MULTI, Answer::Results(results))),
    ]
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(xid in any::<i32>(), request in request()) {
        let asked = Numbered { xid, request };
        let mut out = Vec::new();
        asked.encode(&mut out);
        prop_assert_eq!(Numbered::decode(&out), Ok(asked));
        for cut in 0..out.len() {
            prop_assert!(Numbered::decode(&out[..cut]).is_err(), "no part of a request is one");
        }
    }

    #[test]
    fn a_reply_is_read_as_it_was_written(xid in 0..i32::MAX, zxid in any::<i64>(), (opcode, answer) in answer()) {
        let reply = Reply { xid, zxid, answer: Ok(answer) };
        let mut out = Vec::new();
        reply.encode_frame(&mut out);
        prop_assert_eq!(u32::from_be_bytes(out[..4].try_into().expect("four bytes")) as usize, out.len() - 4);
        prop_assert_eq!(Reply::decode(&out[4..], opcode), Ok(reply));
    }

    #[test]
    fn arbitrary_bytes_are_harmless_and_no_request_has_two_readings(opcode in -12..110_i32, rest in vec(any::<u8>(), 0..80)) {
        let bytes = [&1_i32.to_be_bytes()[..], &opcode.to_be_bytes(), &rest].concat();
        let _ = ConnectRequest::decode(&bytes);
        let _ = Reply::decode(&bytes, opcode);
        if let Ok(read) = Numbered::decode(&bytes) {
            let mut out = Vec::new();
            read.encode(&mut out);
            if !matches!(read.request, Request::Reconfig | Request::Sasl) {
                prop_assert_eq!(Numbered::decode(&out), Ok(read), "what was read is read again from what is written of it");
            }
        }
    }
}
