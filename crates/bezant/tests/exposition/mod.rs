//! A strict reader of the text that Prometheus scrapes (OpenMetrics 1.0): everything that is not as the standard and the naming
//! conventions want it is an error.

use std::collections::{BTreeMap, BTreeSet};

/// One family of metrics.
#[derive(Debug, Default)]
pub struct Family {
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    pub help: String,
    /// Name with its suffix, labels in the order written, value.
    pub samples: Vec<(String, Labels, f64)>,
}

pub type Labels = Vec<(String, String)>;

/// Reads everything, and checks it.
pub fn read(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let text = text.strip_suffix("# EOF\n").ok_or("the last line is not `# EOF`")?;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        read_line(line, &mut families, &mut current).map_err(|wrong| format!("{wrong}: {line}"))?;
    }
    let mut helps = BTreeSet::new();
    for (name, family) in &families {
        check_family(name, family).map_err(|wrong| format!("{name}: {wrong}"))?;
        if !helps.insert(&family.help) {
            return Err(format!("{name}: another family has the same help: make them one family with a label"));
        }
    }
    Ok(families)
}

fn read_line(line: &str, families: &mut BTreeMap<String, Family>, current: &mut String) -> Result<(), String> {
    if let Some(comment) = line.strip_prefix("# ") {
        let (word, rest) = comment.split_once(' ').ok_or("a comment of one word")?;
        let (name, value) = rest.split_once(' ').ok_or("it says nothing")?;
        match word {
            "HELP" => {
                if families.contains_key(name) {
                    return Err("a second HELP".to_owned());
                }
                *current = name.to_owned();
                families.entry(name.to_owned()).or_default().help = value.to_owned();
            }
            "TYPE" => {
                let family = families.get_mut(name).filter(|_| name == current).ok_or("TYPE without its HELP before it")?;
                if !family.kind.is_empty() || !family.samples.is_empty() {
                    return Err("a second TYPE, or samples before it".to_owned());
                }
                family.kind = value.to_owned();
            }
            _ => return Err("neither HELP nor TYPE".to_owned()),
        }
        return Ok(());
    }
    let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
    let value: f64 = value.parse().map_err(|_| "the value is no number")?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, read_labels(labels.strip_suffix('}').ok_or("the labels do not end")?)?),
        None => (series, Labels::new()),
    };
    let family = families.get_mut(current.as_str()).ok_or("a sample of no family")?;
    if name.strip_prefix(current.as_str()).is_none() {
        return Err(format!("a sample of another family than {current}"));
    }
    if family.samples.iter().any(|(other, known, _)| other == name && *known == labels) {
        return Err("the same series twice".to_owned());
    }
    family.samples.push((name.to_owned(), labels, value));
    Ok(())
}

fn read_labels(text: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        let (value, after) = after.split_once('"').ok_or("a label whose value does not end")?;
        if !is_name(name) || value.contains(['\\', '\n']) {
            return Err(format!("the label {name}={value}"));
        }
        if labels.iter().any(|(other, _)| other == name) {
            return Err(format!("the label {name} twice"));
        }
        labels.push((name.to_owned(), value.to_owned()));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Ok(labels)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

/// Base units, as the last word and nowhere else.
const UNITS: [&str; 2] = ["seconds", "bytes"];
/// Words that say a unit which is not a base unit, or what the type says already.
const NO_WORDS: [&str; 12] = ["ms", "us", "ns", "milliseconds", "microseconds", "minutes", "kb", "kib", "mb", "mib", "percent", "total"];

fn check_family(name: &str, family: &Family) -> Result<(), String> {
    if !is_name(name) || !(name.starts_with("bezant_") || name.starts_with("process_")) {
        return Err("not a name of ours".to_owned());
    }
    let words: Vec<&str> = name.split('_').collect();
    if let Some(word) = words.iter().find(|word| NO_WORDS.contains(word)) {
        return Err(format!("the name says `{word}`"));
    }
    if words[..words.len() - 1].iter().any(|word| UNITS.contains(word)) {
        return Err("its unit is not its last word".to_owned());
    }
    if family.help.len() < 10 || family.help.contains("  ") {
        return Err(format!("its help helps nobody: {}", family.help));
    }
    for (series, labels, value) in &family.samples {
        let suffix = &series[name.len()..];
        let fits = match family.kind.as_str() {
            "counter" => suffix == "_total" && *value >= 0.0,
            "gauge" => suffix.is_empty(),
            "info" => suffix == "_info" && *value == 1.0,
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            kind => return Err(format!("unknown type {kind}")),
        };
        let has_le = labels.iter().any(|(label, _)| label == "le");
        if !fits || has_le != (suffix == "_bucket") || labels.iter().any(|(label, _)| label == "cause") {
            return Err(format!("{series} {labels:?} {value} is no sample of a {}", family.kind));
        }
    }
    if family.kind == "histogram" { check_histograms(family) } else { Ok(()) }
}

/// Buckets grow, the last one has no bound, and counts all.
fn check_histograms(family: &Family) -> Result<(), String> {
    let mut open: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let without_le = |labels: &Labels| labels.iter().filter(|(label, _)| label != "le").cloned().collect::<Labels>();
    for (series, labels, value) in &family.samples {
        if let Some((_, bound)) = labels.iter().find(|(label, _)| label == "le") {
            let bound = bound.parse().map_err(|_| format!("the bound {bound}"))?;
            open.entry(without_le(labels)).or_default().push((bound, *value));
        } else if series.ends_with("_sum") || series.ends_with("_count") {
            open.entry(labels.clone()).or_default();
        }
    }
    for (labels, buckets) in open {
        let grows = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let count = family.samples.iter().find(|(series, others, _)| series.ends_with("_count") && *others == labels);
        let sum = family.samples.iter().any(|(series, others, _)| series.ends_with("_sum") && *others == labels);
        let all = buckets.last().filter(|(bound, _)| *bound == f64::INFINITY).map(|(_, count)| *count);
        if !grows || !sum || all.is_none() || all != count.map(|(_, _, count)| *count) {
            return Err(format!("{labels:?}: no histogram: {buckets:?}"));
        }
    }
    Ok(())
}
