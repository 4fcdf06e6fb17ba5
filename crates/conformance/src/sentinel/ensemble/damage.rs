//! Damage in a server's memory, done on purpose by what drills use.

use ::sentinel::Damage;
use ::sentinel::ensemble::Member;
use ::sentinel::order::Status;
use machine::Time;
use random::Random;

random::named! {
    /// What is damaged.
    pub enum Corruption {
        /// A bit of a node's data.
        Data,
        /// A bit of a node's stat.
        Stat,
        /// A bit of a node's ACL.
        Acl,
        /// A node has one child too many.
        Children,
        /// A transaction is not applied.
        Drop,
        /// A transaction is applied twice.
        Double,
        /// A transaction is applied after the next one.
        Reorder,
        /// What is proposed is not what was applied.
        Proposal,
    }
}

impl Corruption {
    fn damage(self) -> Option<Damage> {
        Some(match self {
            Self::Data => Damage::Data,
            Self::Stat => Damage::Stat,
            Self::Acl => Damage::Acl,
            Self::Children => Damage::Children,
            Self::Drop => Damage::Drop,
            Self::Double => Damage::Double,
            Self::Reorder => Damage::Reorder,
            Self::Proposal => return None,
        })
    }
}

/// What is to be damaged, again in each of a server's processes.
#[derive(Clone, Copy, Debug)]
pub struct DamagePlan {
    pub corruption: Corruption,
}

/// After how long it is done, in milliseconds, from and to.
const AFTER_MS: (u64, u64) = (200, 2_500);
/// How long it waits for its turn to lead, in milliseconds.
const LEADS_WITHIN_MS: u64 = 1_500;
/// Where nodes are damaged, if they are there.
const PATHS: [&str; 5] = ["/n0", "/n1", "/n0/c0", "/n2", "/"];

/// The damage of one process.
#[derive(Debug)]
pub struct Injection {
    plan: Option<DamagePlan>,
    at: Time,
    /// Until then it waits for its server to lead.
    leads_by: Time,
    has_damaged: bool,
}

impl Injection {
    pub fn new(plan: Option<DamagePlan>, has_damaged: bool, now: Time, random: &mut Random) -> Self {
        let at = now.after_ms(random.between(AFTER_MS.0, AFTER_MS.1));
        let leads_by = if random.chance(500) { at.after_ms(LEADS_WITHIN_MS) } else { at };
        Self { plan, at, leads_by, has_damaged }
    }

    /// Whether anything was damaged, in this process or before.
    pub fn has_damaged(&self) -> bool {
        self.has_damaged
    }

    pub fn deadline(&self) -> Option<Time> {
        (self.plan.is_some() && !self.has_damaged).then_some(self.at)
    }

    /// Does the damage when it is due: gives what was done.
    pub fn inject(&mut self, now: Time, member: &mut Member, random: &mut Random) -> Option<String> {
        let plan = self.plan.filter(|_| !self.has_damaged && self.at <= now)?;
        if !member.replica().is_member() {
            // The first start needs all of them.
            self.at = now.after_ms(50);
            return None;
        }
        let leads = matches!(member.replica().status(), Status::Leading { .. });
        if !leads && now < self.leads_by {
            self.at = now.after_ms(50);
            return None;
        }
        let mut paths = PATHS;
        random.shuffle(&mut paths);
        let done = match plan.corruption.damage() {
            None => {
                member.damage_proposal();
                Some("its next proposal".to_owned())
            }
            Some(damage) => {
                let done = paths.iter().find(|path| member.server_mut().damage(damage, path).is_ok());
                done.map(|path| format!("{:?} of {path}, leading: {leads}", plan.corruption))
            }
        };
        self.at = now.after_ms(50);
        self.has_damaged = done.is_some();
        done
    }
}
