//! The smallest application: it remembers what was delivered, and answers with its place.

use std::collections::BTreeMap;

use bytes::Bytes;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::{ClientId, ClusterId, Digest};

use super::application::{Answer, Application, Said, page_digest};
use super::request::{Request, RequestKey};

/// So many requests stand on a page.
const REQUESTS_PER_PAGE: usize = 16;

/// What was delivered, in order: of each request its name and its hash.
#[derive(Debug)]
pub struct History {
    cluster: ClusterId,
    delivered: Vec<Entry>,
    places: BTreeMap<RequestKey, u64>,
    /// The states that are kept: how long each is.
    kept: BTreeMap<u64, usize>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The list in which it was delivered.
    pub sequence: u64,
    /// Its name.
    pub key: RequestKey,
    /// Its hash.
    pub digest: Digest,
}

impl History {
    /// Nothing was delivered.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, delivered: Vec::new(), places: BTreeMap::new(), kept: BTreeMap::new() }
    }

    /// What was delivered.
    #[must_use]
    pub fn delivered(&self) -> &[Entry] {
        &self.delivered
    }

    /// Makes it wrong, as a fault of the memory would.
    pub fn damage(&mut self) {
        if let Some(entry) = self.delivered.last_mut() {
            entry.digest[0] ^= 1;
        }
    }

    fn page_bytes(&self, length: usize, index: usize) -> Option<Bytes> {
        let pages = length.div_ceil(REQUESTS_PER_PAGE);
        let begin = index * REQUESTS_PER_PAGE;
        let entries = self.delivered.get(begin..length.min(begin + REQUESTS_PER_PAGE)).filter(|_| index < pages)?;
        let mut out = Vec::new();
        encode_sequence(entries, &mut out);
        Some(out.into())
    }
}

/// The answer to the request at this place.
fn answer(place: u64, digest: &Digest) -> Said {
    let mut out = place.to_bytes();
    out.extend_from_slice(digest);
    Said { bytes: out.into(), leaf: None }
}

impl Application for History {
    type Answer = Said;

    fn deliver(&mut self, sequence: u64, requests: &[Request], answers: &mut Vec<Answer<Said>>) {
        for request in requests {
            let digest = request.id(self.cluster).digest;
            let place = self.delivered.len() as u64;
            self.delivered.push(Entry { sequence, key: request.key, digest });
            self.places.insert(request.key, place);
            answers.push(Answer { key: request.key, answer: answer(place, &digest) });
        }
    }

    fn answered(&self, request: &Request) -> Option<Said> {
        let place = *self.places.get(&request.key)?;
        Some(answer(place, &self.delivered.get(usize::try_from(place).ok()?)?.digest))
    }

    /// How much was delivered.
    fn query(&mut self, _client: ClientId, _question: &Bytes) -> Option<Bytes> {
        Some((self.delivered.len() as u64).to_bytes().into())
    }

    fn checkpoint(&mut self, sequence: u64) -> Vec<Digest> {
        // It only grows, so that a state kept is its length.
        let length = self.delivered.len();
        self.kept.insert(sequence, length);
        let pages = length.div_ceil(REQUESTS_PER_PAGE);
        (0..pages).filter_map(|index| Some(page_digest(self.cluster, &self.page_bytes(length, index)?))).collect()
    }

    fn page(&self, sequence: u64, index: usize) -> Option<Bytes> {
        self.page_bytes(*self.kept.get(&sequence)?, index)
    }

    fn release(&mut self, before: u64) {
        self.kept = self.kept.split_off(&before);
    }

    fn install(&mut self, sequence: u64, pages: &[Bytes]) {
        let entries = |page: &Bytes| {
            let mut reader = Reader::new(page.clone(), self.cluster);
            reader.sequence::<Entry>("entries", REQUESTS_PER_PAGE).unwrap_or_default()
        };
        self.delivered = pages.iter().flat_map(entries).collect();
        self.places = self.delivered.iter().zip(0..).map(|(entry, place)| (entry.key, place)).collect();
        self.kept = BTreeMap::from([(sequence, self.delivered.len())]);
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sequence.encode(out);
        self.key.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { sequence: u64::decode(reader)?, key: RequestKey::decode(reader)?, digest: reader.array()? })
    }
}
