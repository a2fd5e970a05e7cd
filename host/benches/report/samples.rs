//! What was measured: a heap of numbers of one kind.

/// Measured values, all in one unit.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds one.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Adds others.
    pub fn add(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }

    /// The value in the middle; not a number if there is none.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The value that 99 of 100 do not exceed: the largest where there are fewer than 100.
    pub fn p99(&self) -> f64 {
        self.at(0.99)
    }

    /// The smallest value that this share of all does not exceed (the nearest rank).
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
