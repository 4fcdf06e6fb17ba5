//! How a replica that fell behind takes over a state: the one that a stable checkpoint covers, page by page, from whoever has it.
//!
//! The certificate names the digest of the head, and the head the digest of each page. So each answer is checked by itself, and the next one may be
//! asked of another replica. Whoever gave a wrong one is not asked again for this state. What a replica has already of the pages, from an earlier attempt or in
//! a state of its own, it does not ask for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use machine::{OutboxOf, Time, Voters};
use mutants::{Mutant, broken};
use types::codec::Decode;
use types::{Digest, Party};

use super::application::{Application, page_digest};
use super::checkpoints::{Head, state_digest};
use super::message::{Certificate, HEAD_BYTES_MAX, Message, PAGE_BYTES_MAX};
use super::replica::Replica;
use super::windows::Standing;

/// A replica that lacks a stable state waits for so many ticks: perhaps it is about to deliver what it lacks.
const TICKS_BEHIND_MAX: u64 = 4;
/// How many pages are asked for at a time.
const PAGES_AT_ONCE: usize = 8;

/// A state that is being taken over.
#[derive(Debug)]
pub(super) struct Transfer {
    certificate: Certificate,
    head: Option<(Bytes, Vec<Digest>)>,
    /// The pages that are here, by their digests.
    pages: BTreeMap<Digest, Bytes>,
    /// The pages that were asked for since the last tick.
    asked: BTreeSet<u32>,
    /// Who was asked for which page, or for the head, and has not answered: what others say is not looked at.
    answering: BTreeMap<Option<u32>, Voters>,
    /// Who gave something wrong.
    liars: Voters,
    turn: u64,
}

impl Transfer {
    /// Whether that replica was asked for this page, or for the head: it has answered then, and has its next answer looked at when it is asked again.
    fn takes_answer(&mut self, from: u16, page: Option<u32>) -> bool {
        let asked = self.answering.get_mut(&page).filter(|asked| asked.contains(from));
        asked.map(|asked| asked.remove(from)).is_some() || broken(Mutant::UnaskedAnswers)
    }
}

impl<A: Application> Replica<A> {
    /// At each tick: begins to take over a state when it has to, and asks again for what has not come.
    pub(super) fn go_on_transferring(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let lacks = |sequence| sequence > self.delivered || self.has_diverged;
        let Some(stable) = self.stable.as_ref().filter(|stable| lacks(stable.sequence)) else {
            (self.transfer, self.behind_ticks) = (None, 0);
            return;
        };
        self.behind_ticks += 1;
        if self.behind_ticks < TICKS_BEHIND_MAX && self.transfer.is_none() {
            return;
        }
        let certificate = stable.clone();
        if self.transfer.as_ref().is_none_or(|transfer| transfer.certificate.sequence != certificate.sequence) {
            let pages = self.transfer.take().map(|transfer| transfer.pages).unwrap_or_default();
            let (asked, answering, liars) = (BTreeSet::new(), BTreeMap::new(), Voters::default());
            self.transfer = Some(Transfer { certificate, head: None, pages, asked, answering, liars, turn: self.ticks });
        }
        if let Some(transfer) = &mut self.transfer {
            transfer.asked.clear();
            transfer.turn += 1;
        }
        self.ask_for_state(now, outbox);
    }

    /// Of the pages of the state that is taken over those that are here: from an attempt before this one, or in this replica's last own state. What is not in
    /// the state any more goes.
    fn keep_at_hand(&self, digests: &[Digest], pages: &mut BTreeMap<Digest, Bytes>) {
        let cluster = self.cluster.id();
        let wanted: BTreeSet<Digest> = digests.iter().copied().collect();
        pages.retain(|digest, _| wanted.contains(digest) || broken(Mutant::OldPagesKept));
        let Some((sequence, own)) = self.checkpoints.last_key_value() else { return };
        let Ok(head) = Head::from_bytes(own.head.clone(), cluster) else { return };
        for (index, digest) in head.pages.iter().enumerate().filter(|(_, digest)| wanted.contains(*digest)) {
            if !pages.contains_key(digest)
                // Its own state may be the one that is wrong.
                && let Some(page) = self.application.page(*sequence, index).filter(|page| page_digest(cluster, page) == *digest)
            {
                pages.insert(*digest, page);
            }
        }
    }

    /// Asks the next replica for the head, or several for a page each.
    fn ask_for_state(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let Some(mut transfer) = self.transfer.take() else { return };
        if let Some((head, digests)) = &transfer.head {
            let missing = digests.iter().zip(0..).filter(|(digest, _)| !transfer.pages.contains_key(*digest));
            let missing: Vec<u32> = missing.map(|(_, index)| index).take(PAGES_AT_ONCE).collect();
            if missing.is_empty() {
                let pages: Vec<Bytes> = digests.iter().map(|digest| transfer.pages[digest].clone()).collect();
                let (certificate, head) = (transfer.certificate.clone(), head.clone());
                self.finish_transfer(now, certificate, head, &pages, outbox);
                return;
            }
            for index in missing {
                if transfer.asked.insert(index) {
                    let to = self.next_source(&mut transfer, Some(index));
                    outbox.send(to, Message::FetchPage { sequence: transfer.certificate.sequence, index });
                }
            }
        } else {
            let to = self.next_source(&mut transfer, None);
            outbox.send(to, Message::FetchHead(transfer.certificate.sequence));
        }
        self.transfer = Some(transfer);
    }

    /// The next replica that has not lied about this state, which is asked for this page now, or for the head.
    fn next_source(&self, transfer: &mut Transfer, page: Option<u32>) -> Party {
        let others = self.quorum.all() as u64 - 1;
        let next = (1..=others).map(|step| transfer.turn + step).find(|turn| !transfer.liars.contains(self.peer(*turn)));
        // All have lied, or so it seems: begin anew.
        transfer.turn = next.unwrap_or_else(|| {
            transfer.liars = Voters::default();
            transfer.turn + 1
        });
        let source = self.peer(transfer.turn);
        transfer.answering.entry(page).or_default().insert(source);
        self.party(source)
    }

    pub(super) fn on_head(&mut self, now: Time, from: u16, sequence: u64, head: Bytes, outbox: &mut OutboxOf<Self>) {
        let cluster = self.cluster.id();
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.certificate.sequence == sequence && transfer.head.is_none())
        else {
            return;
        };
        if !transfer.takes_answer(from, None) {
            return;
        }
        let is_right = state_digest(cluster, sequence, &head) == transfer.certificate.digest || broken(Mutant::HeadUnchecked);
        match Head::from_bytes(head.clone(), cluster) {
            Ok(parts) if is_right => {
                let mut pages = std::mem::take(&mut transfer.pages);
                transfer.head = Some((Bytes::copy_from_slice(&head), parts.pages.clone()));
                self.keep_at_hand(&parts.pages, &mut pages);
                self.transfer.as_mut().expect("it is under way").pages = pages;
            }
            _ => {
                transfer.liars.insert(from);
            }
        }
        self.ask_for_state(now, outbox);
    }

    pub(super) fn on_page(&mut self, now: Time, from: u16, (sequence, index): (u64, u32), bytes: Bytes, outbox: &mut OutboxOf<Self>) {
        let cluster = self.cluster.id();
        let Some(transfer) =
            self.transfer.as_mut().filter(|transfer| transfer.certificate.sequence == sequence && transfer.asked.contains(&index))
        else {
            return;
        };
        if !transfer.takes_answer(from, Some(index)) {
            return;
        }
        let digests = transfer.head.as_ref().map_or(&[][..], |(_, digests)| digests);
        let Some(digest) = digests.get(index as usize).copied() else { return };
        if page_digest(cluster, &bytes) == digest || broken(Mutant::PageUnchecked) {
            transfer.pages.insert(digest, Bytes::copy_from_slice(&bytes));
            transfer.answering.remove(&Some(index));
        } else {
            transfer.liars.insert(from);
        }
        transfer.asked.remove(&index);
        self.ask_for_state(now, outbox);
    }

    /// The whole state is here. By now a later one may be stable; this one is nearer to it all the same.
    fn finish_transfer(&mut self, now: Time, certificate: Certificate, head: Bytes, pages: &[Bytes], outbox: &mut OutboxOf<Self>) {
        let sequence = certificate.sequence;
        let is_late = self.delivered >= sequence && !self.has_diverged;
        if is_late {
            return;
        }
        self.name_differing(now, &certificate, pages);
        if self.take_over(sequence, certificate.digest, head, pages).is_err() {
            return;
        }
        self.divergences.mend_all(now);
        let windows = &self.windows;
        let old: Vec<_> = self.pool.keys().filter(|key| windows.standing(key) != Standing::New).copied().collect();
        old.iter().for_each(|key| self.pool.remove(key));
        self.write_snapshot(certificate);
        self.deliver(now, outbox);
        self.propose(now, outbox);
    }

    pub(super) fn on_fetch_head(&self, from: Party, sequence: u64, outbox: &mut OutboxOf<Self>) {
        if let Some(own) = self.checkpoints.get(&sequence)
            && own.head.len() <= HEAD_BYTES_MAX
        {
            outbox.send_large(from, Message::Head { sequence, head: own.head.clone() }, own.head.len());
        } else if let Some(stable) = self.stable.as_ref().filter(|stable| stable.sequence > sequence) {
            outbox.send(from, Message::Stable(stable.clone()));
        }
    }

    pub(super) fn on_fetch_page(&self, from: Party, sequence: u64, index: u32, outbox: &mut OutboxOf<Self>) {
        let known = self.checkpoints.contains_key(&sequence);
        if let Some(bytes) = known.then(|| self.application.page(sequence, index as usize)).flatten()
            && bytes.len() <= PAGE_BYTES_MAX
        {
            let length = bytes.len();
            outbox.send_large(from, Message::Page { sequence, index, bytes }, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::world::{CLUSTER, World, request};
    use super::*;

    #[test]
    fn of_the_pages_at_hand_those_of_the_state_stay_and_its_own_are_found() {
        let mut world = World::new();
        for number in 1..=40 {
            world.ask_all(&request(1, number, "a"));
            world.settle();
        }
        let replica = world.node(1).replica();
        let (sequence, own) = replica.checkpoints.last_key_value().expect("it has states of its own");
        let digests = Head::from_bytes(own.head.clone(), CLUSTER).expect("it was encoded here").pages;
        assert!(digests.len() > 1);
        let page = |text: &'static str| (page_digest(CLUSTER, text.as_bytes()), Bytes::from_static(text.as_bytes()));
        let (wanted, old) = (page("of the state"), page("of an earlier one"));
        let mut pages = BTreeMap::from([wanted.clone(), old]);
        replica.keep_at_hand(&[digests[0], wanted.0], &mut pages);
        let first = replica.application.page(*sequence, 0).expect("it keeps it");
        assert_eq!(pages, BTreeMap::from([wanted, (digests[0], first)]));
    }
}
