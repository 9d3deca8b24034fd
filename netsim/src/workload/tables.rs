//! Published distributions of flow sizes: bytes, and the percentage of flows that are no larger.
//! Linear between points.

/// Facebook's Hadoop cluster (Roy et al., "Inside the Social Network's (Datacenter) Network", SIGCOMM
/// 2015), as points of HPCC's traffic generator (`FbHdp_distribution.txt`, SIGCOMM 2019).
pub(super) const HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1_000.0, 60.0),
    (2_000.0, 67.0),
    (7_000.0, 70.0),
    (30_000.0, 72.0),
    (50_000.0, 82.0),
    (80_000.0, 87.0),
    (120_000.0, 90.0),
    (300_000.0, 95.0),
    (1_000_000.0, 97.5),
    (2_000_000.0, 99.0),
    (10_000_000.0, 100.0),
];

/// Alibaba's storage cluster, as points of HPCC's traffic generator (`AliStorage2019.txt`; Li et al.,
/// "HPCC: High Precision Congestion Control", SIGCOMM 2019).
pub(super) const ALI_STORAGE: &[(f64, f64)] = &[
    (0.0, 0.0),
    (4_000.0, 22.93),
    (8_000.0, 69.21),
    (16_000.0, 80.61),
    (32_000.0, 90.47),
    (64_000.0, 93.53),
    (128_000.0, 96.77),
    (256_000.0, 97.53),
    (2_000_000.0, 100.0),
];

/// Web search (Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010), as points of HPCC's traffic
/// generator (`WebSearch_distribution.txt`).
pub(super) const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10_000.0, 15.0),
    (20_000.0, 20.0),
    (30_000.0, 30.0),
    (50_000.0, 40.0),
    (80_000.0, 53.0),
    (200_000.0, 60.0),
    (1_000_000.0, 70.0),
    (2_000_000.0, 80.0),
    (5_000_000.0, 90.0),
    (10_000_000.0, 97.0),
    (30_000_000.0, 100.0),
];

/// The mix of IRN's evaluation as the paper describes it (Mittal et al., "Revisiting Network Support for RDMA",
/// SIGCOMM 2018, section 4.1): half of the flows are single-packet messages of 32 B to 1 KB, 15 % are 200 KB to
/// 3 MB, the rest lies between. The paper does not specify the distribution within these ranges; here it is
/// uniform, so the mean is 275.4 KB. KB and MB are powers of ten.
pub(super) const IRN: &[(f64, f64)] =
    &[(32.0, 0.0), (1_000.0, 50.0), (200_000.0, 85.0), (3_000_000.0, 100.0)];
