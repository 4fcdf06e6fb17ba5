//! Numbers of which few are drawn often: Zipf's law.

use rand::Rng;
use rand_distr::Distribution as _;

/// Draws ranks from 1 to `ranks`, rank `k` in proportion to `k^-exponent`. It needs no table, so ten million keys cost nothing
/// to set up, and unlike the approximation of Gray et al. that YCSB uses it is exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zipf {
    ranks: u64,
    exponent: f64,
    law: rand_distr::Zipf<f64>,
}

impl Zipf {
    /// The law for `ranks` ranks, or `None` when there is no such law: no rank, or an exponent that is not a
    /// number, below 0, or over [`Zipf::EXPONENT_MAX`].
    #[must_use]
    pub fn new(ranks: u64, exponent: f64) -> Option<Self> {
        let is_offered = ranks > 0 && (0.0..=Self::EXPONENT_MAX).contains(&exponent);
        let law = is_offered.then(|| rand_distr::Zipf::new(ranks as f64, exponent).ok())??;
        Some(Self { ranks, exponent, law })
    }

    /// The steepest law offered. Past it nearly every draw is rank 1.
    pub const EXPONENT_MAX: f64 = 10.0;

    /// One rank, from 1 (the hottest) to `ranks`.
    pub fn draw(&self, rng: &mut impl Rng) -> u64 {
        // Rounding could give one more.
        (self.law.sample(rng) as u64).min(self.ranks)
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// How steep the law is.
    #[must_use]
    pub fn exponent(&self) -> f64 {
        self.exponent
    }

    /// What the probability of `rank` is in proportion to.
    #[must_use]
    pub fn weight(&self, rank: u64) -> f64 {
        (rank as f64).powf(-self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    /// Compares counts of `draws` draws with what the law says, by chi-squared over the ranks.
    fn check(ranks: u64, exponent: f64) {
        let draws = 200_000;
        let zipf = Zipf::new(ranks, exponent).expect("a law");
        let mut rng = SmallRng::seed_from_u64(7);
        let mut counts = vec![0_u64; ranks as usize];
        for _ in 0..draws {
            let rank = zipf.draw(&mut rng);
            assert!((1..=ranks).contains(&rank), "rank {rank} of {ranks}");
            counts[rank as usize - 1] += 1;
        }
        let total: f64 = (1..=ranks).map(|rank| zipf.weight(rank)).sum();
        // Rare ranks are put together, because chi-squared wants five or more in each cell.
        let (mut statistic, mut cells, mut expected, mut seen) = (0.0, 0_u32, 0.0, 0_u64);
        for rank in 1..=ranks {
            expected += f64::from(draws) * zipf.weight(rank) / total;
            seen += counts[rank as usize - 1];
            if expected >= 20.0 || rank == ranks {
                statistic += (seen as f64 - expected).powi(2) / expected.max(1e-9);
                cells += 1;
                (expected, seen) = (0.0, 0);
            }
        }
        // Mean k, deviation sqrt(2k): five deviations are a wrong law, not bad luck (and the seed is fixed anyway).
        let freedom = f64::from(cells.max(2) - 1);
        assert!(
            statistic < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0,
            "n={ranks} s={exponent}: chi-squared {statistic} over {cells} cells"
        );
    }

    #[test]
    fn draws_follow_the_law() {
        for exponent in [0.0, 0.5, 0.9, 0.99, 1.0, 1.2, 2.0] {
            check(1_000, exponent);
        }
        check(2, 0.9);
        check(1, 0.9);
    }

    #[test]
    fn the_hottest_of_ten_million_is_as_hot_as_it_should_be() {
        let zipf = Zipf::new(10_000_000, 0.9).expect("a law");
        let mut rng = SmallRng::seed_from_u64(1);
        let draws = 300_000;
        let hottest = (0..draws).filter(|_| zipf.draw(&mut rng) == 1).count() as f64 / f64::from(draws);
        // The sum of k^-0.9 up to n is about (n^0.1 - 1) / 0.1 + 0.5772 + small terms: 40.7 for ten million.
        let total: f64 = (1..=10_000_000_u64).map(|rank| zipf.weight(rank)).sum();
        assert!((hottest - 1.0 / total).abs() < 0.002, "{hottest} against {}", 1.0 / total);
    }

    #[test]
    fn there_is_no_law_without_ranks_or_with_a_wild_exponent() {
        assert!(Zipf::new(0, 0.9).is_none());
        assert!(Zipf::new(10, f64::NAN).is_none());
        assert!(Zipf::new(10, -0.1).is_none());
        assert!(Zipf::new(10, 10.1).is_none());
    }
}
