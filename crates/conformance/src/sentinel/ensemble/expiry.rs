//! Whether a leader ends a session only when that was unheard of for all its time.
//!
//! This notes when a server hears of which session, and compares when it leads and ends one that nobody asked to be ended.

use std::collections::BTreeMap;

use ::sentinel::Body;
use ::sentinel::ensemble::{self, Member};
use ::sentinel::order::{Body as EntryBody, Status, Zxid};
use machine::Time;

use super::message::Report;

/// When a server heard of which session.
#[derive(Debug, Default)]
pub struct ExpiryWatch {
    heard: BTreeMap<i64, Time>,
    timeouts: BTreeMap<i64, u64>,
    /// Since when it leads, and in which epoch.
    leads: Option<(u32, Time)>,
    /// The last entry of the log that was looked at.
    seen: Zxid,
}

impl ExpiryWatch {
    /// Another server says something.
    ///
    /// What it forwards may be refused, as behind something that is lost or with a wrong password, and then nobody was heard of.
    pub fn hear(&mut self, message: &ensemble::Message, now: Time) {
        if let ensemble::Message::Heard { sessions } = message {
            self.heard.extend(sessions.iter().map(|session| (*session, now)));
        }
    }

    /// Looks at what a turn has added to the log.
    pub fn look(&mut self, member: &Member, now: Time, reports: &mut Vec<Report>) {
        let epoch = if let Status::Leading { epoch } = member.replica().status() { Some(epoch) } else { None };
        if self.leads.map(|(epoch, _)| epoch) != epoch {
            self.leads = epoch.map(|epoch| (epoch, now));
        }
        let added = member.replica().entries_after(self.seen);
        let transaction = |entry: &::sentinel::order::Entry| match &entry.body {
            EntryBody::Payload(payload) => ensemble::ordered_transaction(entry.zxid, payload).ok().flatten(),
            EntryBody::Founders(_) | EntryBody::Joins { .. } => None,
        };
        let transactions: Vec<_> = added.filter_map(transaction).collect();
        self.seen = member.replica().last();
        for transaction in transactions {
            match transaction.body {
                Body::CreateSession { timeout_ms, .. } => {
                    self.timeouts.insert(transaction.session, u64::from(timeout_ms.unsigned_abs()));
                    self.heard.insert(transaction.session, now);
                }
                Body::CloseSession { .. } if transaction.xid == 0 => {
                    let since = [self.heard.get(&transaction.session).copied(), self.leads.map(|(_, since)| since)];
                    let since = since.into_iter().flatten().max();
                    let timeout_ms = self.timeouts.get(&transaction.session).copied();
                    let is_own = self.leads.is_some_and(|(epoch, _)| transaction.zxid.unsigned_abs() >> 32 == u64::from(epoch));
                    if let (true, Some(since), Some(timeout_ms)) = (is_own, since, timeout_ms)
                        && now.after_ms(2) < since.after_ms(timeout_ms)
                    {
                        let ms = now.since(since) / 1_000_000;
                        let what = format!("session {:#x} of {timeout_ms} ms ends {ms} ms after it was heard of", transaction.session);
                        reports.push(Report::Broken(what));
                    }
                }
                _ => {}
            }
        }
    }
}
