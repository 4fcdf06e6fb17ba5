//! What is ordered: requests, and the lists of them that a proposal names.

use bytes::Bytes;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use types::{ClientId, ClusterId, Digest, Party, ReplicaId, Session, ShardId};

/// The longest payload of a request, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// The most requests that one proposal names.
pub const BATCH_REQUESTS_MAX: usize = 1_024;
/// The payloads of one proposal have no more bytes than this together.
pub const BATCH_BYTES_MAX: usize = 2 << 20;

/// Whose request it is, and which one: a process of a client numbers its requests from 1 upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// The client.
    pub client: ClientId,
    /// Its process. Of two processes of a client the later one has the higher number.
    pub session: Session,
    /// The request's number in that process.
    pub number: u64,
}

impl RequestKey {
    /// Who may say a request of this name.
    #[must_use]
    pub fn origin(&self) -> Party {
        replica_of(self.client).map_or(Party::Client(self.client, self.session), Party::Replica)
    }
}

/// The name under which a replica, of whichever shard, asks as clients do. No client has one of these, which lie above [`ClientId::MAX`].
#[must_use]
pub fn name_of(replica: ReplicaId) -> ClientId {
    ClientId(u64::MAX - (u64::from(replica.shard.0) << 16 | u64::from(replica.index)))
}

/// The replica that asks under this name, if it is one's.
#[must_use]
pub fn replica_of(client: ClientId) -> Option<ReplicaId> {
    let number = u64::MAX - client.0;
    let (shard, [low, high, ..]) = (u16::try_from(number >> 16).ok()?, number.to_le_bytes());
    Some(ReplicaId { shard: ShardId(shard), index: u16::from_le_bytes([low, high]) })
}

/// A request's name and the hash of all of it. A client that lies may give one name to several requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId {
    /// Its name.
    pub key: RequestKey,
    /// The hash of name and payload.
    pub digest: Digest,
}

/// A request. What its payload means is known above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub key: RequestKey,
    /// What is asked.
    pub payload: Bytes,
}

impl Request {
    /// Its name and its hash.
    #[must_use]
    pub fn id(&self, cluster: ClusterId) -> RequestId {
        let digest = crypto::digest("augustus request", cluster, &[&self.key.to_bytes(), &self.payload]);
        RequestId { key: self.key, digest }
    }
}

/// What stands for a list of requests in votes. The empty list is what a new view puts where nothing was decided.
#[must_use]
pub fn list_digest(cluster: ClusterId, ids: &[RequestId]) -> Digest {
    let mut bytes = Vec::with_capacity(ids.len() * 56);
    ids.iter().for_each(|id| id.encode(&mut bytes));
    crypto::digest("augustus list", cluster, &[&bytes])
}

impl Encode for RequestKey {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.0.encode(out);
        self.session.0.encode(out);
        self.number.encode(out);
    }
}

impl Decode for RequestKey {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (client, session) = (ClientId(u64::decode(reader)?), Session(u64::decode(reader)?));
        Ok(Self { client, session, number: u64::decode(reader)? })
    }
}

impl Encode for RequestId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for RequestId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: RequestKey::decode(reader)?, digest: reader.array()? })
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        encode_count(self.payload.len(), out);
        out.extend_from_slice(&self.payload);
    }
}

impl Decode for Request {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let key = RequestKey::decode(reader)?;
        let length = reader.count("a payload", PAYLOAD_BYTES_MAX)?;
        // Copied, so that keeping a request does not keep the whole frame it came in.
        Ok(Self { key, payload: Bytes::copy_from_slice(&reader.take(length)?) })
    }
}
