/// Immediate data (IBA 9.3.6), 4 bytes, as a number in host byte order; `imm_data` of verbs is `imm.to_be()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImmDt {
    pub imm: u32,
}

impl ImmDt {
    pub(crate) const LEN: usize = 4;

    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        ImmDt { imm: u32::from_be_bytes(*bytes) }
    }

    pub(crate) fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.imm.to_be_bytes();
    }
}
