//! What a server counts.

/// How long something took, in milliseconds, over and over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How often.
    pub count: u64,
    /// All together.
    pub total_ms: u64,
    /// The shortest.
    pub least_ms: u64,
    /// The longest.
    pub most_ms: u64,
}

impl Latency {
    /// Counts one more.
    pub fn add(&mut self, ms: u64) {
        self.least_ms = if self.count == 0 { ms } else { self.least_ms.min(ms) };
        self.most_ms = self.most_ms.max(ms);
        self.count += 1;
        self.total_ms = self.total_ms.saturating_add(ms);
    }

    /// The mean; 0 where nothing was counted.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total_ms as f64 / self.count as f64 }
    }
}

/// Counters since the server started, or since an operator reset them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests received.
    pub received: u64,
    /// Replies and events sent.
    pub sent: u64,
    /// Bytes of replies and events.
    pub sent_bytes: u64,
    /// How long the last reply was, the shortest and the longest; −1 before the first.
    pub reply_bytes: [i64; 3],
    /// Transactions applied.
    pub transactions: u64,
    /// Requests that could not be read.
    pub malformed: u64,
    /// Clients that could not show who they are.
    pub auth_failed: u64,
    /// Connections that began or resumed a session, or tried to.
    pub connected: u64,
    /// Sessions that ended because their clients were not heard of.
    pub expired: u64,
    /// Shards of the tree whose nodes were hashed anew and found right.
    pub shards_scrubbed: u64,
    /// From a request's arrival to its answer, of all requests.
    pub latency: Latency,
    /// The same of those that only read.
    pub reads: Latency,
    /// The same of those that write.
    pub updates: Latency,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        Self { reply_bytes: [-1; 3], ..Self::default() }
    }

    pub(crate) fn on_sent(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.sent += 1;
        self.sent_bytes += bytes.cast_unsigned();
        let [_, least, most] = self.reply_bytes;
        self.reply_bytes = [bytes, if least < 0 { bytes } else { least.min(bytes) }, most.max(bytes)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_has_its_least_most_and_mean() {
        let mut latency = Latency::default();
        assert_eq!(latency.mean_ms(), 0.0);
        [4, 1, 7].into_iter().for_each(|ms| latency.add(ms));
        assert_eq!((latency.least_ms, latency.most_ms, latency.mean_ms()), (1, 7, 4.0));
    }
}
