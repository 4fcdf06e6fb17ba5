//! Scripts that chance writes.

use super::language::Script;

/// How many commands chance gives before everything is allowed to come right.
const COMMANDS: usize = 60;

/// Numbers from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_of(&mut self, words: &[&'static str]) -> &'static str {
        words[usize::try_from(self.below(words.len() as u64)).expect("there are few words")]
    }

    /// Some of the six replicas, at least one.
    fn replicas(&mut self) -> String {
        let chosen = self.below(63) + 1;
        (0..6).filter(|index| chosen & (1 << index) != 0).map(|index| format!(" r{index}")).collect()
    }
}

/// A transaction whose votes justify both decisions is logged, invoked, elected for and finished at random, by two liars
/// and two honest finishers, while one replica may lie whenever it leads. In the end every replica has learned one end.
/// What no correct replica may ever sign is watched all along.
pub fn elect(seed: u64) {
    let mut chance = Chance(seed);
    let mut script = Script::default();
    let mut story = Vec::new();
    let mut obey = |script: &mut Script, command: String| {
        story.push(format!("> {command}"));
        story.extend(script.obey(&command));
    };
    let liar = chance.below(6);
    for command in [
        "look a at 300 -> r4 r5",
        &format!("begin t1 at {}", 100 + chance.below(20)),
        "write t1 a 1",
        "prepare t1",
        "votes t1 by c1 <- r0-r3",
        "wait 50ms",
        "finish t1 by c2",
        "recover t1 by c2 -> r3-r5",
        "votes t1 by c2 <- r3-r5",
        "wait 50ms",
    ] {
        obey(&mut script, command.to_owned());
    }
    let logged = chance.replicas();
    for command in [
        format!("log t1 by c1 ->{logged}"),
        "log t1 by c2".to_owned(),
        "finish t1 by c3".to_owned(),
        "recover t1 by c3".to_owned(),
        format!("votes t1 by c3 <-{}", chance.replicas()),
        "logged t1 by c3".to_owned(),
    ] {
        obey(&mut script, command);
    }
    for _ in 0..COMMANDS {
        let client = 1 + chance.below(4);
        let replicas = chance.replicas();
        let command = match chance.below(16) {
            0 => format!("log t1 by c{client} ->{replicas}"),
            1 => format!("finish t1 by c{}", 3 + chance.below(2)),
            2 => format!("recover t1 by c{client} ->{replicas}"),
            3 => format!("votes t1 by c{client} <-{replicas}"),
            4 => format!("logged t1 by c{client} <-{replicas}"),
            5 | 6 => format!("invoke t1 ->{replicas}"),
            7 | 8 => format!("elect t1 ->{replicas}"),
            9 => format!("decide t1 ->{replicas}"),
            10 => format!("drop decide t1 <-{replicas}"),
            11 => format!("drop {} t1 <-{replicas}", chance.one_of(&["log", "logged", "invoke", "elect"])),
            12 | 13 => format!("mislead r{liar} t1 {} ->{replicas}", chance.one_of(&["commit", "abort"])),
            14 => {
                let crashed = chance.below(6);
                obey(&mut script, format!("crash r{crashed}"));
                format!("restart r{crashed}")
            }
            _ => format!("wait {}ms", chance.one_of(&["20", "60", "150", "400"])),
        };
        obey(&mut script, command);
    }
    obey(&mut script, "run 10s".to_owned());
    let ends = script.obey("look a at 10000");
    let known = [["r0-r5 answer a = 1"], ["r0-r5 answer a = nothing @0"]];
    let is_one = ends.len() == 1 && known.iter().any(|[end]| ends[0].starts_with(end)) && !ends[0].contains("prepared");
    assert!(is_one, "with seed {seed} there is no one end: {ends:?}\n\n{}", story.join("\n"));
    script.check_serial_order();
}
