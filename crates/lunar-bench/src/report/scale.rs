//! Maps values to positions on an axis, and chooses its ticks.

use super::figures;

/// The minimum pixels of a decade with three ticks.
const ROOM: f64 = 55.0;

/// How an axis is divided.
#[derive(Clone, Debug, PartialEq)]
pub enum ScaleKind {
    /// Linear, from zero.
    Even,
    /// Logarithmic, in decades.
    Decades,
    /// By powers of two, with the headings as tick labels if they are not sizes.
    Sizes(Vec<(f64, String)>),
    /// Percent, where each further 9 has the same width.
    Nines,
}

/// The type of the values of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Figures in the unit of the axis.
    Figure,
    /// Nanoseconds, shown with a unit.
    Time,
}

/// Maps the values of an axis to pixels.
#[derive(Clone, Debug)]
pub struct Scale {
    division: ScaleKind,
    quantity: Quantity,
    /// The first and last value, in coordinates of the division.
    domain: (f64, f64),
    /// The first and last pixel.
    range: (f64, f64),
}

impl Scale {
    /// Creates an axis that contains all of these values.
    pub fn new(
        division: ScaleKind,
        quantity: Quantity,
        values: impl Iterator<Item = f64>,
        range: (f64, f64),
    ) -> Scale {
        let counted = values.filter_map(|value| count(&division, value));
        let (low, high) = counted.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let domain = match division {
            ScaleKind::Even => (0.0, even_end(high)),
            ScaleKind::Decades => (decade_begin(low), decade_end(high, decade_begin(low))),
            ScaleKind::Sizes(_) => (low, high.max(low + 1.0)),
            ScaleKind::Nines => (0.0, high.max(2.0)),
        };
        Scale { division, quantity, domain, range }
    }

    /// The pixel of a value; None if it is outside the axis.
    pub fn place(&self, value: f64) -> Option<f64> {
        let counted = count(&self.division, value)?;
        let share = (counted - self.domain.0) / (self.domain.1 - self.domain.0);
        Some(self.range.0 + share.clamp(0.0, 1.0) * (self.range.1 - self.range.0))
    }

    /// The pixel and text of each tick.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let place = |(value, text): (f64, String)| Some((self.place(value)?, text));
        self.values().into_iter().filter_map(place).collect()
    }

    fn values(&self) -> Vec<(f64, String)> {
        let (from, to) = self.domain;
        let labelled = |value: f64| match self.quantity {
            Quantity::Figure => (value, figures::trimmed(value)),
            Quantity::Time => (value, figures::round_time(value)),
        };
        match &self.division {
            ScaleKind::Even => {
                let step = even_step(to);
                (0..=8).map(|n| n as f64 * step).filter(|v| *v <= to * 1.0001).map(labelled).collect()
            }
            ScaleKind::Decades => {
                let room = (self.range.1 - self.range.0).abs() / (to - from);
                decades(from, to, room).into_iter().map(labelled).collect()
            }
            ScaleKind::Sizes(heads) if !heads.is_empty() => heads.clone(),
            ScaleKind::Sizes(_) => {
                let powers = from.ceil() as i32..=to.floor() as i32;
                powers.map(|power| 2f64.powi(power)).map(|bytes| (bytes, figures::size(bytes))).collect()
            }
            ScaleKind::Nines => [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999]
                .into_iter()
                .filter(|percent| nines(*percent) <= to + 1e-9)
                .map(|percent| (percent, figures::trimmed(percent)))
                .collect(),
        }
    }
}

/// A value in coordinates of the division.
fn count(division: &ScaleKind, value: f64) -> Option<f64> {
    if !value.is_finite() {
        return None;
    }
    let counted = match division {
        ScaleKind::Even => value.max(0.0),
        ScaleKind::Decades => value.log10(),
        ScaleKind::Sizes(_) => value.log2(),
        ScaleKind::Nines => nines(value),
    };
    counted.is_finite().then_some(counted)
}

/// The number of nines: 90 has one, 99 has two; at most twelve.
fn nines(percent: f64) -> f64 {
    -((1.0 - percent / 100.0).clamp(1e-12, 1.0)).log10()
}

/// The step of 1, 2 or 5 times a power of ten that divides `end` into four to eight.
fn even_step(end: f64) -> f64 {
    let rough = end / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough * 0.9999).unwrap_or(10.0);
    step * power
}

/// The end of the last step that contains `high`.
fn even_end(high: f64) -> f64 {
    if !(high > 1e-300 && high < 1e300) {
        return if high >= 1e300 { f64::MAX } else { 1.0 };
    }
    let step = even_step(high);
    (high / step * 0.9999).ceil() * step
}

fn decade_begin(low: f64) -> f64 {
    steps_of_decade(low.floor()).filter(|v| *v <= low + 1e-9).last().unwrap_or(low.floor())
}

fn decade_end(high: f64, begin: f64) -> f64 {
    let is_end = |v: &f64| *v > high - 1e-9 && *v > begin + 1e-9;
    steps_of_decade(high.floor()).find(is_end).unwrap_or(high.floor() + 1.0)
}

/// 1, 2, 5 and 10 of a decade.
fn steps_of_decade(decade: f64) -> impl Iterator<Item = f64> {
    [1f64, 2.0, 5.0, 10.0].into_iter().map(move |step| decade + step.log10())
}

/// The ticks of a logarithmic axis with this many pixels for each decade: with 2 and 5 if there is room, and
/// not every decade if there are many.
fn decades(from: f64, to: f64, room: f64) -> Vec<f64> {
    let whole = from.floor() as i32..=to.ceil() as i32;
    let every = ((to - from) / 8.0).ceil().max(1.0) as i32;
    let steps: &[f64] = if room >= ROOM { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = whole.filter(|power| power.rem_euclid(every) == 0);
    let values = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    values.filter(|v| v.log10() >= from - 1e-9 && v.log10() <= to + 1e-9).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(division: ScaleKind, values: &[f64]) -> Vec<String> {
        let scale = Scale::new(division, Quantity::Figure, values.iter().copied(), (0.0, 200.0));
        scale.ticks().into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn axis_ticks_are_round_values() {
        assert_eq!(texts(ScaleKind::Even, &[2850.0]), ["0", "1,000", "2,000", "3,000"]);
        assert_eq!(texts(ScaleKind::Even, &[0.9]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(
            texts(ScaleKind::Decades, &[15.0, 700.0]),
            ["10", "20", "50", "100", "200", "500", "1,000"]
        );
        assert_eq!(
            texts(ScaleKind::Sizes(vec![]), &[512.0, 2048.0]),
            ["512\u{a0}B", "1\u{a0}KiB", "2\u{a0}KiB"]
        );
        assert_eq!(texts(ScaleKind::Nines, &[99.95]), ["0", "50", "90", "99", "99.9"]);
    }

    #[test]
    fn ticks_are_inside_the_axis_for_any_values() {
        for values in [&[][..], &[0.0], &[f64::MAX, 1.0], &[1e-300], &[f64::NAN, f64::INFINITY], &[-5.0, 5.0]]
        {
            for division in [ScaleKind::Even, ScaleKind::Decades, ScaleKind::Sizes(vec![]), ScaleKind::Nines]
            {
                let scale =
                    Scale::new(division.clone(), Quantity::Time, values.iter().copied(), (10.0, 20.0));
                let places = values.iter().filter_map(|v| scale.place(*v));
                let ticks = scale.ticks();
                assert!(ticks.len() < 2000, "{division:?} {values:?}: {}", ticks.len());
                for place in places.chain(ticks.into_iter().map(|tick| tick.0)) {
                    assert!((10.0..=20.0).contains(&place), "{division:?} {values:?}: {place}");
                }
            }
        }
    }

    #[test]
    fn each_nine_has_equal_width() {
        let scale = Scale::new(ScaleKind::Nines, Quantity::Figure, [99.9].into_iter(), (0.0, 300.0));
        let places: Vec<f64> =
            [0.0, 90.0, 99.0, 99.9].iter().map(|p| scale.place(*p).unwrap().round()).collect();
        assert_eq!(places, [0.0, 100.0, 200.0, 300.0]);
    }
}
