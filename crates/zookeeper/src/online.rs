//! Compares servers that run (§4.2 of the thesis): each keeps its digest at every 128th transaction, and says them to whoever asks.
//!
//! The digest that more than half of the servers have at a transaction counts as right there; whoever has another one, the leader too, is
//! wrong since the first such transaction. A server that has found damage itself, and so serves nobody, still answers here.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use sentinel::Profile;
use sentinel::limits::DIGEST_EVERY_ZXIDS;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read: a log of digests has 1,024 lines.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// What one server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What it is among the others: `leader`, `follower`, `standalone`.
    pub role: String,
    /// How it computes digests.
    pub profile: String,
    /// Its digests, by transaction.
    pub digests: BTreeMap<i64, String>,
    /// What it has found to be wrong with itself.
    pub damage: Option<String>,
}

/// What was found of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has the digest that most have, at this transaction.
    Agrees {
        /// The newest at which this is known.
        zxid: i64,
    },
    /// It has another digest than most.
    Differs {
        /// The first transaction at which this is known.
        since: i64,
        /// The last before it at which it had the right one.
        last_right: Option<i64>,
        /// Its digest there.
        found: String,
        /// What most have there.
        expected: String,
    },
    /// It has found damage itself, and serves nobody.
    Quarantined(String),
    /// It has no digest at a transaction where most have one: it is behind, or has just started.
    NotComparable(String),
    /// It does not answer.
    Silent(String),
}

/// What an audit of servers that run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineAudit {
    /// The newest transaction at which more than half of the servers have one digest.
    pub zxid: Option<i64>,
    /// Of each server its role, if it answered, and what was found.
    pub verdicts: Vec<(String, Option<String>, Verdict)>,
}

impl OnlineAudit {
    /// Whether all servers answered and have the same state.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.verdicts.iter().all(|(_, _, verdict)| matches!(verdict, Verdict::Agrees { .. }))
    }
}

/// Asks the servers at these addresses (`host:port` of their client ports), and compares.
pub async fn audit_online(servers: &[String]) -> OnlineAudit {
    let mut reports = Vec::new();
    for server in servers {
        reports.push((server.clone(), report(server).await));
    }
    compare(reports)
}

async fn report(server: &str) -> Result<Report, String> {
    let (monitored, digests) = (ask(server, "mntr").await?, ask(server, "hash").await?);
    let mut report = Report::default();
    for line in monitored.lines() {
        match line.split_once('\t') {
            Some(("zk_server_state", role)) => report.role = role.to_owned(),
            Some(("zk_digest_profile", profile)) => report.profile = profile.to_owned(),
            Some(("zk_damage", damage)) => report.damage = Some(damage.to_owned()),
            _ => {}
        }
    }
    for line in digests.lines() {
        let (zxid, digest) = line.split_once(": ").ok_or_else(|| format!("it answers \"{line}\" to hash"))?;
        let number = zxid.strip_prefix("0x").and_then(|digits| i64::from_str_radix(digits, 16).ok());
        report.digests.insert(number.ok_or_else(|| format!("{zxid} is no transaction"))?, digest.to_owned());
    }
    Ok(report)
}

async fn ask(server: &str, word: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| "it does not answer in time".to_owned())?;
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.contains("not in the whitelist") {
        return Err(format!("it does not answer {word}: add mntr and hash to its 4lw.commands.whitelist"));
    }
    Ok(answer)
}

/// Compares what servers say.
#[must_use]
pub fn compare(reports: Vec<(String, Result<Report, String>)>) -> OnlineAudit {
    let asked = reports.len();
    let mut votes: BTreeMap<(i64, &str, &str), usize> = BTreeMap::new();
    for report in reports.iter().filter_map(|(_, report)| report.as_ref().ok()) {
        for (zxid, digest) in &report.digests {
            *votes.entry((*zxid, &report.profile, digest)).or_default() += 1;
        }
    }
    // Two digests cannot both be those of more than half.
    let right: BTreeMap<i64, (&str, &str)> =
        votes.iter().filter(|(_, count)| **count * 2 > asked).map(|((zxid, profile, digest), _)| (*zxid, (*profile, *digest))).collect();
    let verdicts = reports.iter().map(|(server, report)| match report {
        Err(error) => (server.clone(), None, Verdict::Silent(error.clone())),
        Ok(report) => (server.clone(), Some(report.role.clone()), judge(report, &right)),
    });
    OnlineAudit { zxid: right.keys().next_back().copied(), verdicts: verdicts.collect() }
}

fn judge(report: &Report, right: &BTreeMap<i64, (&str, &str)>) -> Verdict {
    if let Some(damage) = &report.damage {
        return Verdict::Quarantined(damage.clone());
    }
    let common = || report.digests.iter().filter_map(|(zxid, found)| right.get(zxid).map(|expected| (*zxid, found, *expected)));
    if let Some((_, _, (profile, _))) = common().find(|(_, _, (profile, _))| *profile != report.profile) {
        return Verdict::NotComparable(format!("its digests are {}, and those of most {profile}", report.profile));
    }
    let mut last_right = None;
    for (zxid, found, (_, expected)) in common() {
        if found != expected {
            return Verdict::Differs { since: zxid, last_right, found: found.clone(), expected: expected.to_owned() };
        }
        last_right = Some(zxid);
    }
    match last_right {
        Some(zxid) => Verdict::Agrees { zxid },
        None if report.profile == Profile::Off.name() => Verdict::NotComparable("its digests are off".to_owned()),
        None if report.digests.is_empty() => {
            Verdict::NotComparable(format!("it has no digest yet: one is kept at every {DIGEST_EVERY_ZXIDS}th transaction"))
        }
        None if right.is_empty() => Verdict::NotComparable("at no transaction do more than half of the servers have one digest".to_owned()),
        None => Verdict::NotComparable("it has no digest at any transaction where most have one".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, digests: &[(i64, &str)]) -> (String, Result<Report, String>) {
        let digests = digests.iter().map(|(zxid, digest)| (*zxid, (*digest).to_owned())).collect();
        let report = Report { role: "follower".into(), profile: "sha256-wide".into(), digests, damage: None };
        (name.to_owned(), Ok(report))
    }

    fn verdict(audit: &OnlineAudit, at: usize) -> &Verdict {
        &audit.verdicts[at].2
    }

    #[test]
    fn who_differs_from_most_is_named_with_the_first_transaction() {
        let audit = compare(vec![
            server("a", &[(128, "1"), (256, "2"), (384, "3")]),
            server("leader", &[(128, "1"), (256, "x"), (384, "y")]),
            server("c", &[(128, "1"), (256, "2")]),
        ]);
        assert_eq!(audit.zxid, Some(256));
        assert_eq!(verdict(&audit, 0), &Verdict::Agrees { zxid: 256 });
        let differs = Verdict::Differs { since: 256, last_right: Some(128), found: "x".into(), expected: "2".into() };
        assert_eq!(verdict(&audit, 1), &differs);
        assert!(!audit.is_clean());
    }

    #[test]
    fn half_is_no_majority_and_one_server_agrees_with_itself() {
        let audit = compare(vec![server("a", &[(128, "1")]), server("b", &[(128, "2")])]);
        assert!(matches!(verdict(&audit, 0), Verdict::NotComparable(_)) && matches!(verdict(&audit, 1), Verdict::NotComparable(_)));
        assert!(compare(vec![server("a", &[(128, "1")])]).is_clean());
        let silent = ("c".to_owned(), Err("refused".to_owned()));
        let audit = compare(vec![server("a", &[(128, "1")]), server("b", &[(128, "1")]), silent]);
        assert_eq!((audit.zxid, verdict(&audit, 2)), (Some(128), &Verdict::Silent("refused".into())));
    }

    #[test]
    fn what_cannot_be_compared_says_why_and_damage_is_told() {
        let mut other = server("c", &[(128, "9")]);
        other.1.as_mut().expect("it answers").profile = "crc32".into();
        let mut damaged = server("d", &[(128, "1")]);
        damaged.1.as_mut().expect("it answers").damage = Some("at zxid 0x81".into());
        let audit = compare(vec![server("a", &[(128, "1")]), server("b", &[(128, "1")]), other, damaged, server("e", &[])]);
        assert_eq!(audit.zxid, Some(128), "who is quarantined still votes: its digests of the past were right");
        assert!(matches!(verdict(&audit, 2), Verdict::NotComparable(why) if why.contains("crc32")));
        assert_eq!(verdict(&audit, 3), &Verdict::Quarantined("at zxid 0x81".into()));
        assert!(matches!(verdict(&audit, 4), Verdict::NotComparable(why) if why.contains("no digest yet")));
    }
}
