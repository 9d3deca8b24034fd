//! Address handles, the destinations of datagrams.

use std::sync::Arc;

use roce::id::{AhId, QKey, Qpn};
use roce::qp::AddressVector;
use roce::queue::Destination;

use crate::error::Error;
use crate::mr::{Pd, PdInner};

/// An address handle (`ibv_ah`): an address vector for datagrams (UD). The drop of an `Ah` destroys the address handle;
/// a posted datagram that is not yet sent then fails with [`WcStatus::LocQpOpErr`](crate::WcStatus::LocQpOpErr).
///
/// # Example
/// The example sends a datagram to another queue pair of the device. The first 40 bytes of the receive are the GRH
/// area:
///
/// ```
/// use verbs::{Access, AddressVector, Context, DeviceOptions, QKey, QpOptions, ServiceType, WcStatus};
/// use verbs::{RecvRequest, SendData, SendFlags, SendOp, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse()?, &DeviceOptions::default())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
/// let options = QpOptions { service: ServiceType::Ud, ..QpOptions::new(&cq) };
/// let (qp, peer) = (pd.create_qp(&options)?, pd.create_qp(&options)?);
/// let qkey = QKey(0x1111_1111);
/// [&qp, &peer].into_iter().try_for_each(|qp| qp.start_datagrams(qkey))?;
///
/// let region = pd.alloc(128, Access::LOCAL_WRITE)?;
/// region.write(0, b"hello")?;
/// peer.post_recv(&RecvRequest { wr_id: 1, sges: &[region.sge(64, 64)] })?;
/// // GID 1 is the first `ip` of the port's name.
/// let own = context.gid(1).expect("the port has an address");
/// let ah = pd.create_ah(&AddressVector::new(own, 1))?;
/// let op = SendOp::SendTo { to: ah.to(peer.qpn(), qkey) };
/// let data = SendData::Sges(&[region.sge(0, 5)]);
/// qp.post_send(&SendRequest { wr_id: 2, op, flags: SendFlags::default(), data })?;
/// let received = loop {
///     if let Some(cqe) = cq.poll_one()? {
///         break cqe;
///     }
/// };
/// assert_eq!((received.wr_id, received.status, received.len_bytes), (1, WcStatus::Success, 40 + 5));
/// assert_eq!(received.src_qpn, qp.qpn());
/// let mut bytes = [0; 5];
/// region.read(64 + 40, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Ah {
    id: AhId,
    pd: Arc<PdInner>,
}

impl Pd {
    /// Creates an address handle (`ibv_create_ah`), for datagrams of queue pairs of this protection domain. Blocks
    /// until the destination's MAC is resolved, for 3 s at most.
    ///
    /// # Errors
    /// The errors of [`Context::resolve`](crate::Context::resolve); [`Error::NotUnicast`] if the destination GID is not
    /// unicast; [`Error::Create`] if the GID index is invalid, or all address handles of the device are in use.
    pub fn create_ah(&self, path: &AddressVector) -> Result<Ah, Error> {
        let id = self.0.objects.create_ah(self.0.id, path)?;
        Ok(Ah { id, pd: self.0.clone() })
    }
}

impl Ah {
    /// Returns the destination of datagrams to the queue pair `qpn` with the Q_Key `qkey`.
    pub fn to(&self, qpn: Qpn, qkey: QKey) -> Destination {
        Destination { ah: self.id, qpn, qkey }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // The call fails after a fatal error, or if the address handle was destroyed through `ContextObjects`.
        let _ = self.pd.objects.destroy_ah(self.id);
    }
}
