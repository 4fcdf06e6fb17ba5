//! Damage done on purpose, so that operators see a server notice it, and tests measure when.

use std::str::FromStr;
use std::sync::Arc;

use jute::Acl;

use crate::digest::Profile;
use crate::node::Data;
use crate::prepare::Preparer;
use crate::server::Server;
use crate::state::{Applied, Corruption, State};
use crate::transaction::{Body, Change, Transaction};

/// What to damage in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// A bit of a node's data.
    Data,
    /// A bit of a node's stat.
    Stat,
    /// A bit of the permissions of a node's ACL.
    Acl,
    /// The set of a node's children has one too many.
    Children,
    /// The set of a node's children lacks the first.
    Lost,
    /// A bit of the data that the next transaction writes.
    Write,
    /// The next transaction is not applied.
    Drop,
    /// The next transaction is applied twice.
    Double,
    /// The next transaction is applied after the one behind it.
    Reorder,
}

impl Damage {
    /// All kinds.
    pub const ALL: [Self; 9] =
        [Self::Data, Self::Stat, Self::Acl, Self::Children, Self::Lost, Self::Write, Self::Drop, Self::Double, Self::Reorder];

    /// Its name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Stat => "stat",
            Self::Acl => "acl",
            Self::Children => "children",
            Self::Lost => "lost-child",
            Self::Write => "write",
            Self::Drop => "drop",
            Self::Double => "double",
            Self::Reorder => "reorder",
        }
    }
}

impl FromStr for Damage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|damage| damage.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.map(Self::name).into();
            format!("{name} is nothing to damage; these are: {}", names.join(", "))
        })
    }
}

impl State {
    /// Damages the node at `path`, or how the next transaction is applied, behind the back of all that keeps digests.
    ///
    /// # Errors
    /// When there is no such node, or no child of it to be lost.
    pub fn damage(&mut self, damage: Damage, path: &str) -> Result<(), String> {
        if matches!(damage, Damage::Write | Damage::Drop | Damage::Double | Damage::Reorder) {
            self.drill = Some(damage);
            return Ok(());
        }
        let node = self.nodes.get_mut(path).ok_or_else(|| format!("there is no node {path}"))?;
        match damage {
            Damage::Data => {
                let mut data = node.data.as_ref().map(|data| data.to_vec()).unwrap_or_default();
                match data.first_mut() {
                    Some(byte) => *byte ^= 1,
                    None => data.push(1),
                }
                node.data = Some(Data::from(&data[..]));
            }
            Damage::Stat => node.stat.ctime ^= 1 << 20,
            Damage::Acl => {
                let mut acl: Vec<Acl> = node.acl.to_vec();
                acl.iter_mut().take(1).for_each(|line| line.permissions ^= 1 << 1);
                node.acl = Arc::new(acl);
            }
            // A name that no client can create, and without its share in the sum.
            Damage::Children => drop(node.children.insert("\u{1}", Profile::Off)),
            Damage::Lost => {
                let first = node.children.names().next().map(str::to_owned).ok_or_else(|| format!("{path} has no children"))?;
                node.children.remove(&first, Profile::Off);
            }
            Damage::Write | Damage::Drop | Damage::Double | Damage::Reorder => {}
        }
        Ok(())
    }
}

impl State {
    /// Applies a transaction as the drill wants it.
    pub(crate) fn misapply(&mut self, transaction: &Transaction, preparer: Option<&Preparer>) -> Result<Applied, Corruption> {
        let zxid = transaction.zxid;
        match self.drill.take() {
            Some(Damage::Double) => {
                self.apply_once(transaction, preparer)?;
                self.zxid = zxid - 1;
                self.apply_once(transaction, preparer)
            }
            Some(Damage::Write) => match transaction.with_damaged_data() {
                Some(damaged) => self.apply_once(&damaged, preparer),
                None => {
                    self.drill = Some(Damage::Write);
                    self.apply_once(transaction, preparer)
                }
            },
            Some(damage) => {
                self.held = (damage == Damage::Reorder).then(|| transaction.clone());
                self.zxid = zxid;
                Ok(Applied::default())
            }
            None => {
                let applied = self.apply_once(transaction, preparer)?;
                if let Some(late) = self.held.take() {
                    self.zxid = late.zxid - 1;
                    self.apply_once(&late, preparer)?;
                    self.zxid = zxid;
                }
                Ok(applied)
            }
        }
    }
}

impl Transaction {
    /// The same, but for a bit of the first data that it writes, if it writes any.
    fn with_damaged_data(&self) -> Option<Self> {
        let mut damaged = self.clone();
        let Body::Changes(changes) = &mut damaged.body else { return None };
        let data = changes.iter_mut().find_map(|change| match change {
            Change::Create { data: Some(data), .. } | Change::SetData { data: Some(data), .. } if !data.is_empty() => Some(data),
            _ => None,
        })?;
        let mut bytes = data.to_vec();
        bytes[0] ^= 1;
        *data = bytes.into();
        Some(damaged)
    }
}

impl Server {
    /// As [`State::damage`].
    ///
    /// # Errors
    /// When there is no such node.
    pub fn damage(&mut self, damage: Damage, path: &str) -> Result<(), String> {
        self.state.damage(damage, path)
    }
}
