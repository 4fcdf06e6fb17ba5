//! What Sentinel notices of damage, and that it is what the book says.

use conformance::sentinel::detection::{Line, Mode, lines, table};

/// The page that has the table.
const PAGE: &str = include_str!("../../../docs/protocols/sentinel.md");

#[test]
fn damage_is_noticed_as_the_book_says_and_in_realtime_before_anything_wrong_is_said() {
    let lines = lines();
    for Line { row, at_leader, outcomes } in &lines {
        let of = |mode: Mode| outcomes.iter().filter(move |(of, _)| *of == mode).flat_map(|(_, outcomes)| outcomes);
        for (profile, outcome) in of(Mode::Realtime) {
            let context = format!("{} under {profile:?}, at the leader: {at_leader}: {outcome:?}", row.name);
            assert!(outcome.noticed.is_some(), "{context}");
            assert!(!outcome.answered_wrong, "{context}");
            assert!(outcome.back_after.is_some(), "{context}");
        }
        for (profile, outcome) in of(Mode::Online).filter(|(_, outcome)| outcome.noticed.is_some()) {
            assert!(outcome.back_after.is_some(), "{} under {profile:?}, at the leader: {at_leader}: {outcome:?}", row.name);
        }
    }
    let found = table(&lines);
    assert!(PAGE.contains(&found), "docs/protocols/sentinel.md has another table than this; `bezant-lab detection` makes it:\n{found}");
}
