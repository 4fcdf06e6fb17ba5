//! What a check finds wrong: the first few things in words, the rest in number.

/// How many things that are wrong are told.
pub(crate) const TOLD_MAX: usize = 20;

/// All that a check has found wrong so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    told: Vec<String>,
    untold: u64,
}

impl Findings {
    /// One more.
    pub(crate) fn add(&mut self, what: String) {
        if self.told.len() < TOLD_MAX { self.told.push(what) } else { self.untold += 1 }
    }

    /// The same, if there is one.
    pub(crate) fn note(&mut self, checked: Result<(), String>) {
        checked.err().into_iter().for_each(|what| self.add(what));
    }

    /// What to tell of them.
    pub(crate) fn told(mut self) -> Vec<String> {
        if self.untold > 0 {
            self.told.push(format!("and {} more things are wrong", self.untold));
        }
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_findings_are_told_in_few_words() {
        let mut findings = Findings::default();
        (0..TOLD_MAX + 5).for_each(|number| findings.add(number.to_string()));
        let told = findings.told();
        assert_eq!((told.len(), told[TOLD_MAX].as_str()), (TOLD_MAX + 1, "and 5 more things are wrong"));
    }
}
