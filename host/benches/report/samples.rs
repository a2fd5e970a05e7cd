//! Measured values and their statistics.

#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn add(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }

    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The 99th percentile. With fewer than 100 values, this is the largest value.
    pub fn p99(&self) -> f64 {
        self.at(0.99)
    }

    /// The quantile `share`, by the nearest-rank method: the smallest value such that at least this share of all values
    /// are less than or equal to it.
    fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Extend<f64> for Samples {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        self.0.extend(values);
    }
}
