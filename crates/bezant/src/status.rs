//! `bezant status`: who is up, and how far. Asks every replica's HTTP window; those that do not answer are down.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use config::Topology;
use monitoring::http_client;
use runtime::Configuration;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use types::{ClusterId, ReplicaId, ShardId};

use crate::failure::{Attempt as _, Done, Failure};
use crate::out;
use crate::output::{line_letters, tame, wrap};
use crate::tell;
use crate::up;

/// The most that is shown of anything a replica says.
pub const WORDS_LETTERS_MAX: usize = 200;
/// The state of a replica that does all it is for.
pub const SERVING: &str = "serving";
/// The state of one that waits for others: for what their clocks show, or for a leader.
pub const WAITING: &str = "waiting";
/// The state of one that lost its disk and takes its data over from the others.
pub const REBUILDING: &str = "rebuilding";
/// The state of one that has found its own state to be wrong and has not put it right yet.
pub const DIVERGED: &str = "diverged";

/// Says which replicas are up, and how far each is.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The cluster's folder, or a client's folder of it
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    /// The same, for who is used to `up` and `down`
    #[arg(value_name = "DIR", conflicts_with = "cluster")]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

type Answer = (ReplicaId, String, Result<Value, String>);

/// Carries out `bezant status`.
pub async fn run(args: &StatusArgs) -> Result<Done, Failure> {
    let place = args.folder.as_ref().unwrap_or(&args.cluster);
    let topology = bezant_client::load(place)?.topology;
    let mut asked = JoinSet::new();
    for (replica, endpoint) in topology.endpoints.clone() {
        asked.spawn(async move {
            let answer = http_client::get(&endpoint.http, "/status").await;
            let answer = answer.and_then(|body| serde_json::from_str::<Value>(&body).map_err(|_| "the answer is not a status".to_owned()));
            (replica, tame(&endpoint.http, WORDS_LETTERS_MAX), answer)
        });
    }
    let mut answers = Vec::with_capacity(topology.endpoints.len());
    while let Some(answer) = asked.join_next().await {
        answers.push(answer.attempt("ask a replica", "this process")?);
    }
    answers.sort_by_key(|(replica, _, _)| *replica);
    for (replica, _, answer) in &mut answers {
        *answer = std::mem::replace(answer, Ok(Value::Null)).map(tamed).map_err(|error| tame(&error, WORDS_LETTERS_MAX));
        if let Ok(status) = answer
            && !is_from(status, topology.cluster.id(), *replica)
        {
            *answer = Err("somebody else answers there".to_owned());
        }
    }
    let shards: Vec<Shard> = topology.cluster.shards().map(|shard| Shard::of(shard, &topology, &answers)).collect();
    if args.json {
        out!("{}", to_json(&answers, &shards, &remarks(&topology, &answers)));
    } else {
        out!("{}", render(&answers, line_letters()));
        let say = |words: &String| tell!("{}", wrap(words, line_letters(), 2));
        remarks(&topology, &answers).iter().for_each(say);
        up::warn_of_other_copies(place);
        shards.iter().filter_map(Shard::words).for_each(|words| say(&words));
        if answers.iter().all(|(_, _, answer)| answer.is_err()) && up::replica_folders(place).is_ok() {
            tell!("no replica answers: `bezant up {}` starts those whose folders are here", place.display());
        }
    }
    Ok(if answers.iter().all(|(_, _, answer)| answer.as_ref().is_ok_and(serves)) { Done::Well } else { Done::Negative })
}

/// Whether that replica of that cluster says this: another cluster's may have its port.
pub fn is_from(status: &Value, cluster: ClusterId, replica: ReplicaId) -> bool {
    status["cluster"] == json!(cluster.to_string()) && status["replica"] == json!(replica.to_string())
}

/// Whether a replica says that it serves.
pub fn serves(status: &Value) -> bool {
    status["state"] == json!(SERVING)
}

/// Whether a replica says that it lost its disk and is not rebuilt yet.
pub fn is_rebuilding(status: &Value) -> bool {
    status["rebuilding"]["under_way"] == json!(1)
}

/// The same in words, with how far it is.
pub fn rebuilding_words(status: &Value) -> Option<String> {
    let how_far = status["rebuilding"]["words"].as_str().unwrap_or("it does not say how far it is");
    is_rebuilding(status).then(|| format!("does not serve while it is rebuilt: {how_far}"))
}

/// What somebody should know of the replicas, beside how each of them is.
fn remarks(topology: &Topology, answers: &[Answer]) -> Vec<String> {
    let here = Configuration::of(&topology.cluster, topology.signatures, topology.chain.version());
    let mut remarks = of_each(answers, |replica, status| difference_words(&here, replica, status));
    remarks.extend(["window_ms", "time_bound_ms"].iter().filter_map(|name| settings_words(name, answers)));
    remarks.extend(injected_latency_words(answers));
    let warning =
        |part: &'static str| move |replica, status: &Value| Some(format!("warning: {replica}: {}", status[part]["words"].as_str()?));
    remarks.extend(of_each(answers, warning("clock")));
    remarks.extend(isolated(topology, answers));
    remarks.extend(of_each(answers, |replica, status| Some(format!("{replica} {}", status["waits"].as_str()?))));
    remarks.extend(of_each(answers, |replica, status| rebuilding_words(status).map(|words| format!("{replica} {words}"))));
    remarks.extend(catching_up_words(answers));
    remarks.extend(of_each(answers, warning("divergences")));
    remarks.extend(of_each(answers, warning("disk")));
    remarks
}

/// What there is to say of each replica that answers.
fn of_each(answers: &[Answer], words: impl Fn(ReplicaId, &Value) -> Option<String>) -> Vec<String> {
    answers.iter().filter_map(|(replica, _, answer)| words(*replica, answer.as_ref().ok()?)).collect()
}

/// Who serves and still takes over what it may have missed, and how far each is.
fn catching_up_words(answers: &[Answer]) -> Option<String> {
    let behind = answers.iter().filter_map(|(replica, _, answer)| {
        let status = answer.as_ref().ok()?;
        let catch_up = &status["catch_up"];
        if catch_up["behind"] != json!(1) || is_rebuilding(status) {
            return None;
        }
        let of_all = catch_up["keys"].as_u64().filter(|keys| *keys > 0);
        let percent = of_all.map(|keys| number(&catch_up["keys_compared"]).saturating_mul(100).checked_div(keys).unwrap_or(0).min(99));
        let left = catch_up["left_seconds"].as_u64().map_or_else(String::new, |left| format!(", about {} left", duration(left)));
        Some(percent.map_or_else(|| replica.to_string(), |percent| format!("{replica} ({percent} %{left})")))
    });
    let behind: Vec<String> = behind.collect();
    let words =
        || format!("compared with the others, for what was missed: {}. Stop no other replica before that has ended", behind.join(", "));
    (!behind.is_empty()).then(words)
}

fn to_json(answers: &[Answer], shards: &[Shard], remarks: &[String]) -> Value {
    let replicas: Vec<Value> = answers
        .iter()
        .map(|(replica, http, answer)| match answer {
            Ok(status) => json!({"replica": replica.to_string(), "http": http, "up": true, "status": status}),
            Err(error) => json!({"replica": replica.to_string(), "http": http, "up": false, "error": error}),
        })
        .collect();
    let shards: Vec<Value> = shards.iter().map(Shard::to_json).collect();
    json!({ "replicas": replicas, "shards": shards, "remarks": remarks })
}

/// A column of the table: its heading, how much it is worth where not all fit (the least goes first), and what stands in it.
struct Column {
    heading: &'static str,
    worth: u8,
    cell: fn(&str, &Value) -> String,
}

/// Numbers are set to the right, words to the left.
const COLUMNS: [Column; 8] = [
    Column { heading: "STATE", worth: 9, cell: |_, status| word(&status["state"]) },
    Column { heading: "VERSION", worth: 2, cell: |_, status| word(&status["version"]) },
    Column { heading: "COMMITTED", worth: 9, cell: |_, status| number(&status["transactions"]["committed"]).to_string() },
    Column { heading: "ABORTED", worth: 4, cell: |_, status| number(&status["transactions"]["aborted"]).to_string() },
    Column { heading: "UNDECIDED", worth: 9, cell: |_, status| counted(&status["transactions"]["undecided"]) },
    Column { heading: "JOURNAL", worth: 3, cell: |_, status| bytes(number(&status["store"]["journal_bytes"])) },
    Column { heading: "UP", worth: 9, cell: |_, status| duration(number(&status["uptime_seconds"])) },
    Column { heading: "HTTP", worth: 1, cell: |http, _| http.to_owned() },
];
/// What stands between two columns.
const GAP: &str = "  ";

/// A line a replica, with as many columns as fit `letters`; where too few do, some lines a replica.
fn render(answers: &[Answer], letters: Option<usize>) -> String {
    let mut columns: Vec<(&Column, Vec<String>)> = COLUMNS.iter().map(|column| (column, cells(column, answers))).collect();
    let names = answers.iter().map(|(replica, _, _)| replica.to_string()).collect::<Vec<_>>();
    let name_letters = names.iter().map(String::len).max().unwrap_or(0).max("REPLICA".len());
    while name_letters + columns.iter().map(|column| GAP.len() + width(column)).sum::<usize>() > letters.unwrap_or(usize::MAX) {
        let Some(least) = columns.iter().map(|(column, _)| column.worth).min().filter(|worth| *worth < 9) else {
            return stack(answers, letters);
        };
        columns.retain(|(column, _)| column.worth != least);
    }
    let mut out = format!("{:name_letters$}", "REPLICA");
    columns.iter().for_each(|column| out += &set(column, column.0.heading));
    for (row, ((_, http, answer), name)) in answers.iter().zip(&names).enumerate() {
        out = format!("{}\n{name:name_letters$}", out.trim_end());
        match answer {
            Ok(_) => columns.iter().for_each(|column| out += &set(column, &column.1[row])),
            Err(error) => {
                out += &wrap(&format!("{GAP}down{GAP}{error} ({http})"), letters.map(|letters| letters - name_letters), name_letters + 2)
            }
        }
    }
    out.trim_end().to_owned()
}

/// What stands in a column, a cell a replica.
fn cells(column: &Column, answers: &[Answer]) -> Vec<String> {
    answers.iter().map(|(_, http, answer)| answer.as_ref().map_or_else(|_| String::new(), |status| (column.cell)(http, status))).collect()
}

fn width((column, cells): &(&Column, Vec<String>)) -> usize {
    cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(column.heading.len())
}

/// A cell, as wide as its column.
fn set(column: &(&Column, Vec<String>), cell: &str) -> String {
    let letters = width(column);
    match column.0.heading {
        "STATE" | "VERSION" | "HTTP" => format!("{GAP}{cell:letters$}"),
        _ => format!("{GAP}{cell:>letters$}"),
    }
}

/// Some lines a replica, for narrow terminals.
fn stack(answers: &[Answer], letters: Option<usize>) -> String {
    let of_replica = |(replica, http, answer): &Answer| {
        let text = match answer {
            Ok(status) => {
                let fields =
                    COLUMNS.iter().skip(1).map(|column| format!("{}\u{a0}{}", column.heading.to_lowercase(), (column.cell)(http, status)));
                format!("{replica} {} {}", word(&status["state"]), fields.collect::<Vec<_>>().join(" "))
            }
            Err(error) => format!("{replica} down {error} ({http})"),
        };
        wrap(&text, letters, 2).replace('\u{a0}', " ")
    };
    answers.iter().map(of_replica).collect::<Vec<_>>().join("\n")
}

/// Whether its `cluster.toml` differs from the one read here.
fn difference_words(here: &Configuration, replica: ReplicaId, status: &Value) -> Option<String> {
    let differs = here.difference(&Configuration::from_text(status["configuration"].as_str()?)?)?;
    Some(format!("warning: the cluster.toml of {replica} differs from the one here in {differs}: take the same file on every host"))
}

/// Which replicas go by a setting that most of the others have otherwise, and all must have alike.
fn settings_words(name: &str, answers: &[Answer]) -> Option<String> {
    let mut holders: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (replica, _, answer) in answers {
        if let Some(value) = answer.as_ref().ok().and_then(|status| status["settings"][name].as_u64()) {
            holders.entry(value).or_default().push(replica.to_string());
        }
    }
    let most = *holders.iter().max_by_key(|(_, holders)| holders.len())?.0;
    holders.remove(&most);
    let others = holders.iter().map(|(value, holders)| format!("{value} at {}", holders.join(", ")));
    let others: Vec<String> = others.collect();
    let words = || format!("warning: {name} is {most} at most replicas, and {}: all must have it alike (node.toml)", others.join(", "));
    (!others.is_empty()).then(words)
}

/// Who runs under injected latency.
fn injected_latency_words(answers: &[Answer]) -> Option<String> {
    let apart = of_each(answers, |replica, status| {
        let regions = &status["regions"];
        regions.is_object().then(|| format!("{replica} in {} ({})", word(&regions["region"]), word(&regions["name"])))
    });
    (!apart.is_empty()).then(|| format!("warning: latency is injected: {}", apart.join(", ")))
}

/// For so long after its start a replica may still be connecting, in seconds.
const CONNECTING_SECONDS: u64 = 10;

/// Who serves, but is connected with so few of those of its shard that serve that together they cannot answer for it. Of a shard of which too few serve
/// that is said already.
fn isolated(topology: &Topology, answers: &[Answer]) -> Vec<String> {
    let mut isolated = Vec::new();
    let needed = (topology.engine.quorum)(topology.cluster.faults());
    for shard in topology.cluster.shards() {
        let of_shard = answers.iter().filter(|(replica, _, _)| replica.shard == shard);
        let serving: Vec<(ReplicaId, &Value)> =
            of_shard.filter_map(|(replica, _, answer)| Some((*replica, answer.as_ref().ok().filter(|status| serves(status))?))).collect();
        for (replica, status) in serving.iter().filter(|_| serving.len() >= needed) {
            let others: Vec<ReplicaId> = serving.iter().map(|(other, _)| *other).filter(|other| other != replica).collect();
            isolated.extend(isolated_words(*replica, status, &others, needed));
        }
    }
    isolated
}

fn isolated_words(replica: ReplicaId, status: &Value, others: &[ReplicaId], needed: usize) -> Option<String> {
    let state_of = |other: &ReplicaId| status["peers"][other.to_string()]["state"].as_str();
    let apart: Vec<&ReplicaId> = others.iter().filter(|other| state_of(other) != Some("connected")).collect();
    let connected = others.len() - apart.len();
    let words = || {
        let each = apart.iter().map(|other| match state_of(other) {
            None | Some("awaited") => format!("{other} has not connected"),
            Some(why) => format!("{other} {why}"),
        });
        let words = format!(
            "warning: {replica} is connected with {connected} of the {} others of its shard that serve, and {} are needed: {}",
            others.len(),
            needed - 1,
            each.collect::<Vec<_>>().join("; ")
        );
        tame(&words, 2 * WORDS_LETTERS_MAX)
    };
    (connected + 1 < needed && number(&status["uptime_seconds"]) >= CONNECTING_SECONDS).then(words)
}

/// How many of a shard's replicas serve.
struct Shard {
    shard: ShardId,
    replicas: usize,
    serving: usize,
    /// How many have to, so that it can commit.
    needed: usize,
    /// What it does while not all of them serve.
    while_incomplete: &'static str,
}

impl Shard {
    fn of(shard: ShardId, topology: &Topology, answers: &[Answer]) -> Self {
        let (cluster, engine) = (&topology.cluster, topology.engine);
        let of_shard = answers.iter().filter(|(replica, _, _)| replica.shard == shard);
        let serving = of_shard.filter(|(_, _, answer)| answer.as_ref().is_ok_and(serves)).count();
        let needed = (engine.quorum)(cluster.faults());
        Self { shard, replicas: cluster.replicas_per_shard(), serving, needed, while_incomplete: engine.while_incomplete }
    }

    fn can_commit(&self) -> bool {
        self.serving >= self.needed
    }

    /// Whether it can still commit, of one that is not whole.
    fn words(&self) -> Option<String> {
        let Self { shard, replicas, serving, needed, while_incomplete } = self;
        let gone = replicas.checked_sub(*serving).filter(|gone| *gone > 0)?;
        Some(if self.can_commit() {
            format!("shard {shard} serves without {gone} of its replicas; until they are back, {while_incomplete}")
        } else {
            let serving = if *serving == 1 { "1 replica serves".to_owned() } else { format!("{serving} replicas serve") };
            format!("shard {shard} cannot commit: {serving}, and {needed} are needed")
        })
    }

    fn to_json(&self) -> Value {
        json!({"shard": self.shard.to_string(), "replicas": self.replicas, "serving": self.serving, "needed": self.needed,
               "can_commit": self.can_commit()})
    }
}

/// What a replica answered, which may be anything, with all its words fit for a terminal.
fn tamed(status: Value) -> Value {
    match status {
        Value::String(text) => Value::String(tame(&text, WORDS_LETTERS_MAX)),
        Value::Array(values) => values.into_iter().map(tamed).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (tame(&name, WORDS_LETTERS_MAX), tamed(value))).collect(),
        other => other,
    }
}

/// A word of a status.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").chars().take(20).collect()
}

/// A number, where the replica's engine counts that.
fn counted(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn bytes(count: u64) -> String {
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{} KiB", count >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", count >> 20),
        _ => format!("{:.1} GiB", count as f64 / (1u64 << 30) as f64),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Vec<Answer> {
        let status = json!({"state": "serving", "version": "0.1.0", "uptime_seconds": 3_700, "store": {"journal_bytes": 70 << 20},
                            "transactions": {"committed": 123_456, "aborted": 78, "undecided": 9}});
        let replica = |index| ReplicaId { shard: types::ShardId(0), index };
        vec![
            (replica(0), "127.0.0.1:7406".to_owned(), Ok(status)),
            (replica(1), "127.0.0.1:7407".to_owned(), Err("Connection refused (os error 111)".to_owned())),
        ]
    }

    #[test]
    fn who_is_apart_from_most_of_its_shard_is_named_with_the_reasons() {
        let replica = |index| ReplicaId { shard: types::ShardId(0), index };
        let words = |states: [&str; 3], uptime_seconds: u64| {
            let peers = states.iter().zip(1..).map(|(state, index)| (replica(index).to_string(), json!({"state": state})));
            let status = json!({"peers": peers.collect::<serde_json::Map<_, _>>(), "uptime_seconds": uptime_seconds});
            isolated_words(replica(0), &status, &[1, 2, 3].map(replica), 3)
        };
        assert_eq!(words(["connected", "connected", "connecting"], 60), None);
        assert_eq!(words(["connected", "awaited", "connecting"], 5), None, "it has just begun");
        assert_eq!(
            words(["connected", "refuses: another cluster.toml", "awaited"], 60).as_deref(),
            Some(
                "warning: s0-r0 is connected with 1 of the 3 others of its shard that serve, and 2 are needed: \
                 s0-r2 refuses: another cluster.toml; s0-r3 has not connected"
            )
        );
        let nothing = isolated_words(replica(0), &json!({"uptime_seconds": 60}), &[replica(1), replica(2)], 3);
        assert!(nothing.is_some_and(|words| words.contains("s0-r1 has not connected")));
    }

    #[test]
    fn who_catches_up_is_named_with_how_far_it_is() {
        let mut answers = answers();
        assert_eq!(catching_up_words(&answers), None, "nothing is said of an engine without it");
        let mut say = |catch_up: Value| {
            answers[0].2.as_mut().expect("it answers")["catch_up"] = catch_up;
            catching_up_words(&answers)
        };
        assert_eq!(say(json!({"behind": 0, "keys_compared": 5, "keys": 10})), None);
        let names = |words: Option<String>| {
            words.expect("it is behind").split_once(": ").map(|(_, rest)| rest.split('.').next().map(str::to_owned))
        };
        assert_eq!(names(say(json!({"behind": 1, "keys_compared": 5}))), Some(Some("s0-r0".to_owned())));
        assert_eq!(names(say(json!({"behind": 1, "keys_compared": 5, "keys": 10}))), Some(Some("s0-r0 (50 %)".to_owned())));
        let words = names(say(json!({"behind": 1, "keys_compared": 5, "keys": 10, "left_seconds": 75})));
        assert_eq!(words, Some(Some("s0-r0 (50 %, about 1m15s left)".to_owned())));
        assert_eq!(names(say(json!({"behind": 1, "keys_compared": 12, "keys": 10}))), Some(Some("s0-r0 (99 %)".to_owned())));
    }

    #[test]
    fn a_setting_that_differs_is_named() {
        let mut answers = answers();
        let serving = answers[0].2.clone();
        answers = (0..4).map(|index| (ReplicaId { shard: types::ShardId(0), index }, String::new(), serving.clone())).collect();
        for (_, _, answer) in &mut answers {
            answer.as_mut().expect("it answers")["settings"] = json!({"window_ms": 30_000});
        }
        assert_eq!(["window_ms", "time_bound_ms"].map(|name| settings_words(name, &answers)), [None, None]);
        answers[2].2.as_mut().expect("it answers")["settings"]["window_ms"] = json!(60_000);
        let words = settings_words("window_ms", &answers);
        assert!(words.is_some_and(|words| words.contains("30000 at most replicas, and 60000 at s0-r2")));
    }

    #[test]
    fn the_table_fits_where_it_is_shown() {
        let all = render(&answers(), None);
        assert!(all.lines().next().is_some_and(|line| line.starts_with("REPLICA  STATE    VERSION") && line.ends_with("HTTP")), "{all}");
        for letters in [120, 89, 80, 72, 60, 50, 40, 30] {
            let shown = render(&answers(), Some(letters));
            assert!(shown.lines().all(|line| line.chars().count() <= letters), "{letters}:\n{shown}");
            assert!(["s0-r0", "serving", "123456", "down", "refused"].iter().all(|word| shown.contains(word)), "{letters}:\n{shown}");
        }
        let narrow = render(&answers(), Some(40));
        assert!(narrow.starts_with("s0-r0 serving version 0.1.0\n  committed 123456 aborted 78"), "{narrow}");
        assert!(!render(&answers(), Some(80)).contains("HTTP"), "what is worth least goes first");
    }

    #[test]
    fn a_replica_that_is_rebuilt_says_itself_how_far_it_is() {
        let status = json!({"rebuilding": {"under_way": 1, "words": "has compared 12 keys"}});
        assert_eq!(rebuilding_words(&status).as_deref(), Some("does not serve while it is rebuilt: has compared 12 keys"));
        assert_eq!(rebuilding_words(&json!({"rebuilding": {"under_way": 0}})), None);
    }

    #[test]
    fn a_replica_that_lies_cannot_write_on_the_terminal() {
        let lie = "x\u{1b}[2J\ns0-r9    serving".repeat(1_000);
        let status = tamed(json!({"state": lie, "version": [lie]}));
        let answers = vec![(ReplicaId { shard: types::ShardId(0), index: 0 }, "h".to_owned(), Ok(status.clone()))];
        let remarks = of_each(&answers, |replica, status| Some(format!("{replica} {}", status["state"].as_str()?)));
        let shown = render(&answers, None) + &to_json(&answers, &[], &remarks).to_string();
        assert!(!shown.contains('\u{1b}') && shown.lines().count() == 2 && shown.len() < 5_000, "{shown}");
    }
}
