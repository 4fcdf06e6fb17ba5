//! The table of who notices what, in `docs/testing.md`.

use std::fmt::Write as _;

use conformance::mutants::Ground;
use mutants::Mutant;

/// Its first line.
const HEAD: &str = "| mutant | rule | what it does | noticed by | in |";
/// What stands for who notices when nobody needs to, and for where the argument.
const HARMLESS: &str = "nobody needs to";

/// Where a mutant is noticed, and by whom.
#[derive(Clone, Debug)]
pub struct Row {
    /// A checker of the simulator, or a kind of test.
    pub by: String,
    pub place: Place,
}

/// Where a mutant is noticed.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a run of the simulator.
    Run(Ground, u64),
    /// In a test, by its full name, as `basil::scripts::a_vote_survives_a_crash`.
    Test(String),
    /// Nowhere, since another rule does the same: the argument.
    Harmless(String),
}

/// Reads the page, and its row for each mutant, if that says anything.
pub fn read(page: &str) -> Result<(String, Vec<Option<Row>>), String> {
    let text = std::fs::read_to_string(page).map_err(|error| format!("cannot read {page}: {error}"))?;
    let rows = Mutant::ALL.iter().map(|mutant| text.lines().find_map(|line| row(line, *mutant))).collect();
    Ok((text, rows))
}

fn row(line: &str, mutant: Mutant) -> Option<Row> {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [name, _, _, by, place] = cells.as_slice() else { return None };
    if *name != format!("`{}`", mutant.name()) {
        return None;
    }
    let place = match place.split_once(", seed ") {
        _ if *by == HARMLESS => Place::Harmless((*place).to_owned()),
        Some((scenario, seed)) => {
            let (scenario, words) = scenario.split_once(" with ").unwrap_or((scenario, ""));
            let scenario = Ground::named(scenario.trim_matches('`'))?.with(words.trim_matches('`')).ok()?;
            Place::Run(scenario, seed.parse().ok()?)
        }
        None => Place::Test(place.trim_matches('`').split_once("::").map(|_| place.trim_matches('`').to_owned())?),
    };
    Some(Row { by: (*by).to_owned(), place })
}

impl Place {
    /// As the table has it.
    pub fn text(&self) -> String {
        match self {
            Self::Run(scenario, seed) => {
                let words = scenario.words().join(" ");
                let with = if words.is_empty() { String::new() } else { format!(" with `{words}`") };
                format!("`{}`{with}, seed {seed}", scenario.name())
            }
            Self::Test(name) => format!("`{name}`"),
            Self::Harmless(why) => why.clone(),
        }
    }

    /// What it says of a test that notices: scripts are told apart, as one can read what happens in them.
    pub fn kind_of_test(name: &str) -> String {
        if name.starts_with("basil::scripts::") { "script".to_owned() } else { "test".to_owned() }
    }
}

/// The page with these rows in the place of its own.
pub fn with_rows(page: &str, text: &str, rows: &[Option<Row>]) -> Result<String, String> {
    let mut table = format!("{HEAD}\n|---|---|---|---|---|\n");
    for (mutant, row) in Mutant::ALL.iter().zip(rows) {
        let (by, place) = match row {
            Some(Row { by, place }) => (by.as_str(), place.text()),
            None => ("nobody", "nothing".to_owned()),
        };
        let (name, rule, broken) = (mutant.name(), mutant.rule(), mutant.broken());
        writeln!(table, "| `{name}` | {rule} | {broken} | {by} | {place} |").expect("writing to a string does not fail");
    }
    let start = text.find(HEAD).ok_or(format!("{page} has no table that begins with `{HEAD}`"))?;
    let length: usize = text[start..].split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    Ok(format!("{}{table}{}", &text[..start], &text[start + length..]))
}
