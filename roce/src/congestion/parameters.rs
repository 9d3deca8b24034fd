//! Parameters of a congestion control scheme: named numbers with a default and a range, changed by text such as
//! `rpg_gd=11,rpg_ai_rate=10`.

use std::fmt;

/// Default of the largest number of packets in flight of a queue pair.
pub const DEFAULT_WINDOW_PKTS: u32 = 256;

/// The largest window, in packets: a quarter of the PSN circle. PSNs in flight may cover at most half of the circle.
pub(crate) const WINDOW_PKTS_MAX: u32 = 1 << 22;

/// Bits per second in 1 Mbit/s, the unit of parameters that are rates.
pub(super) const BITS_PER_MBIT: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Name of the parameter in text, and name of its field in the struct that implements [`Parameters`].
    pub name: &'static str,
    /// The smallest value allowed.
    pub min: u32,
    /// The largest value allowed.
    pub max: u32,
}

pub(crate) trait Parameters: Copy + Default + 'static {
    const SCHEME: &'static str;
    /// Name and range of each parameter, in the order in which `write` writes the parameters.
    const LIMITS: &'static [Limits];

    /// Presets: a name, and the value of every parameter. The defaults are not in this list.
    const PRESETS: &'static [(&'static str, Self)];

    /// Returns the value of parameter `index` of [`Parameters::LIMITS`]; `None` if `index` is out of range.
    fn value(&mut self, index: usize) -> Option<&mut u32>;

    fn is_valid(mut self) -> bool {
        Self::LIMITS
            .iter()
            .enumerate()
            .all(|(index, limits)| self.value(index).is_some_and(|v| (limits.min..=limits.max).contains(v)))
    }

    /// Parses `name=value,..`. If `text` begins with the name of a preset, as in `nvidia,rpg_ai_rate=10`, parameters
    /// not named in `text` have the values of this preset. Without a preset, these parameters have their defaults.
    ///
    /// # Errors
    /// `UnknownParameter`, or `BadValue` for a value that is not a number or out of range.
    fn parse(text: &str) -> Result<Self, NoCongestionScheme> {
        let mut parameters = Self::default();
        let mut assignments = text.split(',').peekable();
        let preset = |first: &&str| Self::PRESETS.iter().find(|(name, _)| name == first);
        if let Some((_, values)) = assignments.peek().and_then(preset) {
            parameters = *values;
            assignments.next();
        }
        for assignment in assignments {
            let (name, value) = assignment.split_once('=').unwrap_or((assignment, ""));
            let index = Self::LIMITS.iter().position(|limits| limits.name == name);
            let found = index.and_then(|index| Some((Self::LIMITS.get(index)?, parameters.value(index)?)));
            let Some((limits, place)) = found else {
                let allowed = Self::LIMITS.iter().map(|limits| limits.name).collect::<Vec<_>>().join(", ");
                let (scheme, name) = (Self::SCHEME, name.to_owned());
                return Err(NoCongestionScheme::UnknownParameter { scheme, name, allowed });
            };
            *place = limits.number(value)?;
        }
        Ok(parameters)
    }

    /// Writes the scheme's name and, unless `self` has the defaults, a colon and a text that `parse` reads as `self`.
    /// The text begins with a preset if fewer parameters differ from this preset than from the defaults.
    fn write(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nearest = ("", self.differences(Self::default()));
        for (name, values) in Self::PRESETS {
            let differences = self.differences(*values);
            if differences.len() < nearest.1.len() {
                nearest = (name, differences);
            }
        }
        let (preset, differences) = nearest;
        f.write_str(Self::SCHEME)?;
        let preset = (!preset.is_empty()).then(|| preset.to_owned());
        for (separator, part) in
            std::iter::once(':').chain(std::iter::repeat(',')).zip(preset.into_iter().chain(differences))
        {
            write!(f, "{separator}{part}")?;
        }
        Ok(())
    }

    fn differences(mut self, mut base: Self) -> Vec<String> {
        let differing = |(index, limits): (usize, &Limits)| {
            let value = *self.value(index)?;
            (base.value(index).as_deref() != Some(&value)).then(|| format!("{}={value}", limits.name))
        };
        Self::LIMITS.iter().enumerate().filter_map(differing).collect()
    }
}

impl Limits {
    /// Parses a value; `BadValue` if the value is not a number or out of range.
    pub(super) fn number(&self, value: &str) -> Result<u32, NoCongestionScheme> {
        let &Limits { name, min, max } = self;
        value.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            NoCongestionScheme::BadValue { name: name.to_owned(), value: value.to_owned(), min, max }
        })
    }
}

/// Error of parsing a [`CongestionScheme`](super::CongestionScheme).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCongestionScheme {
    /// Unknown scheme, or parameters given for a scheme without parameters.
    #[error(
        "there is no congestion control `{name}`: needed none, window, window:PKTS, dcqcn, swift or timely, the \
         last three with parameters as in dcqcn:window_pkts=128,rpg_ai_rate=10"
    )]
    UnknownScheme {
        /// The text that was parsed.
        name: String,
    },
    /// Unknown parameter of a known scheme.
    #[error("{scheme} has no parameter `{name}`: it has {allowed}")]
    UnknownParameter {
        /// Name of the scheme.
        scheme: &'static str,
        /// Name of the unknown parameter.
        name: String,
        /// The parameters of the scheme, separated by commas.
        allowed: String,
    },
    /// Value that is not a number, or out of range.
    #[error("{name} = `{value}`: needed a number from {min} to {max}")]
    BadValue {
        /// Name of the parameter.
        name: String,
        /// The value in the parsed text.
        value: String,
        /// The smallest value allowed.
        min: u32,
        /// The largest value allowed.
        max: u32,
    },
}

/// Declares the parameters of a scheme: documentation, name, default and range.
macro_rules! parameters {
    ($(#[$meta:meta])* $name:ident of $scheme:literal, presets $presets:expr, {
        $($(#[doc = $doc:literal])* $field:ident = $default:expr, in $min:literal to $max:expr;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: u32,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default),* }
            }
        }

        impl $crate::congestion::parameters::Parameters for $name {
            const SCHEME: &'static str = $scheme;
            const PRESETS: &'static [(&'static str, Self)] = $presets;
            const LIMITS: &'static [$crate::congestion::parameters::Limits] = &[
                $($crate::congestion::parameters::Limits { name: stringify!($field), min: $min, max: $max }),*
            ];

            fn value(&mut self, index: usize) -> Option<&mut u32> {
                [$(&mut self.$field),*].into_iter().nth(index)
            }
        }
    };
}
pub(super) use parameters;
