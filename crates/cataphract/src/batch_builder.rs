//! Forms a batch: which transactions fit, and in which order (Cataphract, Algorithm 2).
//!
//! The order of the members is their serial order. Interactive members come first: they have read the store as it was before the
//! batch, so a member that read a key precedes one that writes it. Declared members follow in the order of arrival: they have not
//! read yet, and may read what earlier members write.

use engine::ConflictRule;
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use types::limits::{TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX};
use types::{Key, Timestamp, Value};

use crate::work::{Footprint, Member, Work};

/// How large a batch may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub members: usize,
    pub bytes: usize,
    pub keys: usize,
}

/// Whether a transaction can join a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It can, at this position among the interactive members, or at the end of the declared ones.
    At(usize),
    /// The batch would be too large.
    Full,
    /// It conflicts with a member, and the rule is that no two of a batch do (Alg. 2 L6, L12).
    Conflict,
    /// No order makes its reads valid beside those of other members; other transactions may still fit.
    CannotOrder,
}

/// A batch that is being formed.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    rule: ConflictRule,
    bounds: Bounds,
    sum: Footprint,
    /// The interactive members in the order in which they joined, and their positions.
    interactive: Vec<Member>,
    positions: Vec<usize>,
    declared: Vec<Member>,
    /// The interactive members that read a key, and the version that they all read.
    readers: HashMap<Key, Readers>,
    /// The interactive members that write a key.
    writers: HashMap<Key, Vec<usize>>,
    /// All that members read and write, kept only where no two may conflict: the paper's `ReadSet` and `WriteSet` of the new transaction.
    read_set: HashSet<Key>,
    write_set: HashSet<Key>,
}

#[derive(Debug)]
struct Readers {
    version: Timestamp,
    value: Option<Value>,
    members: Vec<usize>,
}

impl BatchBuilder {
    pub fn new(rule: ConflictRule, bounds: Bounds) -> Self {
        Self {
            rule,
            bounds,
            sum: Footprint::default(),
            interactive: Vec::new(),
            positions: Vec::new(),
            declared: Vec::new(),
            readers: HashMap::new(),
            writers: HashMap::new(),
            read_set: HashSet::new(),
            write_set: HashSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.interactive.len() + self.declared.len()
    }

    /// Whether `work` can join. The first always can: rebuilding shows whether it is too large by itself.
    pub fn fit(&self, work: &Work) -> Fit {
        if self.len() > 0 && self.is_full_with(work.footprint()) {
            return Fit::Full;
        }
        let conflicts = || work.reads().any(|key| self.write_set.contains(key)) || work.writes().any(|key| self.read_set.contains(key));
        if self.rule != ConflictRule::Chain && conflicts() {
            return Fit::Conflict;
        }
        match work {
            Work::Declared(_) => Fit::At(self.declared.len()),
            Work::Interactive(_) => self.position_of(work).map_or(Fit::CannotOrder, Fit::At),
        }
    }

    fn is_full_with(&self, more: Footprint) -> bool {
        let sum = self.sum.plus(more);
        self.len() >= self.bounds.members
            || sum.bytes > self.bounds.bytes
            || sum.reads + sum.writes > self.bounds.keys
            || sum.reads > TRANSACTION_READS_MAX
            || sum.writes > TRANSACTION_WRITES_MAX
    }

    /// A position behind all members that read what `work` writes, and before all that write what it read. There is none when two
    /// members missed each other's writes, or read different versions of one key.
    fn position_of(&self, work: &Work) -> Option<usize> {
        let Work::Interactive(buffer) = work else { return None };
        let found_otherwise = buffer.read_set().any(|found| {
            let known = self.readers.get(&found.key);
            known.is_some_and(|readers| readers.version != found.version || readers.value != found.value)
        });
        if found_otherwise {
            return None;
        }
        let position = |id: &usize| self.positions[*id];
        let behind = work.writes().filter_map(|key| self.readers.get(key)).flat_map(|readers| &readers.members).map(position).max();
        let before = work.reads().filter_map(|key| self.writers.get(key)).flatten().map(position).min();
        let (lowest, highest) = (behind.map_or(0, |position| position + 1), before.unwrap_or(self.interactive.len()));
        (lowest <= highest).then_some(highest)
    }

    /// Takes in a member that fits at `position`.
    pub fn join(&mut self, member: Member, position: usize) {
        self.sum = self.sum.plus(member.work.footprint());
        if self.rule != ConflictRule::Chain {
            self.read_set.extend(member.work.reads().cloned());
            self.write_set.extend(member.work.writes().cloned());
        }
        let Work::Interactive(buffer) = &member.work else {
            self.declared.push(member);
            return;
        };
        let id = self.interactive.len();
        self.positions.iter_mut().filter(|other| **other >= position).for_each(|other| *other += 1);
        self.positions.push(position);
        for found in buffer.read_set() {
            let fresh = || Readers { version: found.version, value: found.value.clone(), members: Vec::new() };
            self.readers.entry(found.key.clone()).or_insert_with(fresh).members.push(id);
        }
        for (key, _) in buffer.write_set() {
            self.writers.entry(key.clone()).or_default().push(id);
        }
        self.interactive.push(member);
    }

    /// The members in their order.
    pub fn finish(self) -> Vec<Member> {
        let mut interactive: Vec<(usize, Member)> = self.positions.into_iter().zip(self.interactive).collect();
        interactive.sort_unstable_by_key(|(position, _)| *position);
        interactive.into_iter().map(|(_, member)| member).chain(self.declared).collect()
    }
}
