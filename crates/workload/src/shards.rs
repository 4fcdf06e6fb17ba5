//! Choosing keys so that a transaction is on one shard, or on two.

use std::sync::Arc;

use rand::Rng;
use rand::rngs::SmallRng;
use types::{Cluster, ShardId};

use crate::{Distribution, Error, Table};

/// Each shard holds so many times the keys of a transaction, so that the wanted ones are soon drawn.
const KEYS_A_SHARD_MIN: usize = 16;
/// So many keys, spread over the table, are looked at to tell.
const SAMPLES_MAX: u64 = 100_000;
/// Of a table that has no more keys, the shard of each is worked out beforehand: whoever measures a cluster shall not measure that.
const KEPT_MAX: u64 = 1 << 22;
/// How often a key is drawn for a shard before the next of that shard is taken instead.
const REDRAWS_MAX: usize = 1_000;

/// Which part of all transactions is on two shards; the others are on one.
#[derive(Debug)]
pub(crate) struct OverShards {
    cluster: Arc<Cluster>,
    share_on_two: f64,
    /// The shard of each key, unless they are very many.
    kept: Option<Vec<ShardId>>,
}

impl OverShards {
    /// For transactions of `wanted` keys of `table`, on the shards of `cluster`.
    ///
    /// # Errors
    /// [`Error::Settings`] when a shard holds too few keys, or there are not two to spread over.
    pub(crate) fn new(cluster: Arc<Cluster>, share_on_two: f64, table: &Table, wanted: usize) -> Result<Self, Error> {
        let shards = cluster.shards().count();
        if share_on_two > 0.0 && (shards < 2 || wanted < 2) {
            return Err(Error::Settings(format!("transactions of {wanted} keys cannot be on two shards of {shards}: say --multi-shard 0")));
        }
        let kept = (table.count() <= KEPT_MAX).then(|| (0..table.count()).map(|index| cluster.shard_of(&table.key(index))).collect());
        let samples = table.count().min(SAMPLES_MAX);
        let mut held = vec![0_usize; shards];
        for sample in 0..samples {
            held[usize::from(cluster.shard_of(&table.key(sample * table.count() / samples)).0)] += 1;
        }
        if let Some(shard) = held.iter().position(|held| *held < KEYS_A_SHARD_MIN * wanted) {
            return Err(Error::Settings(format!("shard {shard} holds too few of the {} keys to choose {wanted} there", table.count())));
        }
        Ok(Self { cluster, share_on_two, kept })
    }

    fn shard_of(&self, table: &Table, index: u64) -> ShardId {
        match &self.kept {
            Some(kept) => kept[usize::try_from(index).expect("no more than KEPT_MAX are kept")],
            None => self.cluster.shard_of(&table.key(index)),
        }
    }

    /// `wanted` indexes, all different, of keys on one shard, or by turns on two: always, if it is wanted so and there are two.
    pub(crate) fn choose(
        &self,
        table: &Table,
        distribution: &Distribution,
        wanted: usize,
        always_on_two: bool,
        rng: &mut SmallRng,
    ) -> Vec<u64> {
        let shards: Vec<ShardId> = self.cluster.shards().collect();
        let first = rng.random_range(0..shards.len());
        let is_on_two = rng.random_bool(self.share_on_two) || (always_on_two && shards.len() > 1);
        let second = if is_on_two { (first + rng.random_range(1..shards.len())) % shards.len() } else { first };
        let mut chosen = Vec::with_capacity(wanted);
        for place in 0..wanted {
            let shard = shards[if place % 2 == 0 { first } else { second }];
            let fits = |index, chosen: &[u64]| self.shard_of(table, index) == shard && !chosen.contains(&index);
            let mut index = distribution.choose(table, rng);
            let mut redraws = 0;
            while !fits(index, &chosen) {
                redraws += 1;
                index = if redraws <= REDRAWS_MAX { distribution.choose(table, rng) } else { (index + 1) % table.count() };
            }
            chosen.push(index);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeSet;
    use types::{ClusterId, Placement};

    fn cluster(shards: usize, placement: Placement) -> Arc<Cluster> {
        let keys = (0..shards).map(|shard| (0..4).map(|replica| [(shard * 4 + replica) as u8; 32]).collect()).collect();
        Arc::new(Cluster::new(ClusterId::new([1; 16]), 1, placement, keys, Vec::new()).expect("a cluster"))
    }

    #[test]
    fn as_many_as_asked_for_are_on_two_shards_and_none_on_more() {
        let (cluster, table) = (cluster(4, Placement::Hash), Table::binary(10_000).expect("a table"));
        for (share, always, expected) in [(0.0, false, 0.0), (0.3, false, 0.3), (1.0, false, 1.0), (0.3, true, 1.0)] {
            let over = OverShards::new(Arc::clone(&cluster), share, &table, 8).expect("enough keys");
            let mut rng = SmallRng::seed_from_u64(1);
            let mut on_two = 0;
            let mut seen = BTreeSet::new();
            for _ in 0..2_000 {
                let chosen = over.choose(&table, &Distribution::Uniform, 8, always, &mut rng);
                assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), 8);
                assert!(chosen.iter().all(|index| over.shard_of(&table, *index) == cluster.shard_of(&table.key(*index))));
                let shards: BTreeSet<ShardId> = chosen.iter().map(|index| cluster.shard_of(&table.key(*index))).collect();
                assert!(shards.len() <= 2, "{shards:?}");
                on_two += usize::from(shards.len() == 2);
                seen.extend(shards);
            }
            assert!((on_two as f64 / 2_000.0 - expected).abs() < 0.04, "{on_two} of 2000, wanted {expected}");
            assert_eq!(seen.len(), 4);
        }
    }

    #[test]
    fn what_cannot_be_chosen_is_refused() {
        let table = Table::binary(10_000).expect("a table");
        let refused = |cluster, share, wanted| OverShards::new(cluster, share, &table, wanted).expect_err("no choice").to_string();
        assert!(refused(cluster(1, Placement::Hash), 0.5, 8).contains("--multi-shard 0"));
        assert!(refused(cluster(2, Placement::Hash), 0.5, 1).contains("--multi-shard 0"));
        assert!(refused(cluster(2, Placement::Hash), 0.0, 400).contains("too few"));
        let all_on_one = Placement::Ranges(vec![types::Key::from("z")]);
        assert!(refused(cluster(2, all_on_one), 0.0, 8).contains("shard 1 holds too few"));
    }
}
