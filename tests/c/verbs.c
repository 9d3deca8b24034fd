/* The C interface of a device whose port receives every frame that it sends: objects, their errors, data, events. */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define DEPTH 64
#define HALF 4096
#define TIMEOUT_SECONDS 20
#define NANOS 1000000000ULL

/* The call returns null and sets errno. */
#define FAILS(call, error)                                                                                            \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        CHECK((call) == NULL);                                                                                        \
        CHECK(errno == (error));                                                                                      \
    } while (0)

struct end {
    struct ibv_qp *qp;
    struct ibv_qp_ex *builder;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static uint8_t memory[2 * HALF];

static void open_device(void)
{
    int count = -1;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count >= 1 && !list[count]);
    struct ibv_device *device = list[count - 1];
    CHECK(!strcmp(ibv_get_device_name(device), "roce0"));
    CHECK(ibv_get_device_guid(device) != 0);
    CHECK(ibv_get_device_index(device) == -1);
    context = ibv_open_device(device);
    CHECK(context && context->device == device);
    ibv_free_device_list(list);
    /* The inline functions find the table of functions. */
    CHECK(verbs_get_ctx(context) && verbs_get_ctx(context)->sz >= 648);
}

static void query(void)
{
    struct ibv_device_attr device;
    CHECK(!ibv_query_device(context, &device));
    CHECK(device.phys_port_cnt == 1 && device.max_qp > 0 && device.max_ah > 0 && device.max_sge >= 4);
    struct ibv_device_attr_ex extended;
    CHECK(!ibv_query_device_ex(context, NULL, &extended));
    CHECK(!memcmp(&extended.orig_attr, &device, sizeof device));
    struct ibv_port_attr port;
    memset(&port, 0xff, sizeof port);
    CHECK(!ibv_query_port(context, 1, &port));
    CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.lid == 0);
    CHECK(port.gid_tbl_len >= 2 && port.pkey_tbl_len == 1 && port.active_mtu >= IBV_MTU_1024);
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, 0, &gid) && gid.raw[0] == 0xfe);
    CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1);
    struct ibv_gid_entry entry, table[8];
    CHECK(!ibv_query_gid_ex(context, 1, 1, &entry, 0));
    CHECK(entry.gid_index == 1 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.gid.raw[10] == 0xff);
    CHECK(ibv_query_gid_ex(context, 1, 99, &entry, 0) == ENODATA);
    CHECK(ibv_query_gid_table(context, table, 8, 0) == port.gid_tbl_len);
    CHECK(!memcmp(&table[1].gid, &entry.gid, sizeof entry.gid));
    __be16 pkey = 0;
    CHECK(!ibv_query_pkey(context, 1, 0, &pkey) && pkey == htobe16(0xffff));
    CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1);
    CHECK(ibv_get_pkey_index(context, 1, htobe16(0xffff)) == 0);
}

static void create(void)
{
    pd = ibv_alloc_pd(context);
    CHECK(pd && pd->context == context);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    mr = ibv_reg_mr(pd, memory, sizeof memory, access);
    CHECK(mr && mr->addr == memory && mr->length == sizeof memory && mr->pd == pd);
    struct ibv_mr *relaxed = ibv_reg_mr_iova(pd, memory, 64, 0x1000, access | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(relaxed && !ibv_dereg_mr(relaxed));
    FAILS(ibv_reg_mr(pd, memory, 64, access | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FAILS(ibv_reg_mr(pd, hole, 4096, 0), EACCES);
    CHECK(!munmap(hole, 4096));
    FAILS(ibv_reg_mr(pd, hole, 4096, 0), EFAULT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);

    channel = ibv_create_comp_channel(context);
    CHECK(channel && channel->fd >= 0);
    cq = ibv_create_cq(context, 2 * DEPTH, (void *)0x1234, channel, 0);
    CHECK(cq && cq->cqe >= 2 * DEPTH && cq->channel == channel);
    FAILS(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
    FAILS(ibv_create_cq(context, 1, NULL, NULL, 1), EINVAL);
    CHECK(ibv_resize_cq(cq, 4) == EOPNOTSUPP);
    struct ibv_srq_init_attr attr = { .srq_context = (void *)0x77, .attr = { .max_wr = 4, .max_sge = 1 } };
    srq = ibv_create_srq(pd, &attr);
    CHECK(srq && srq->srq_context == (void *)0x77 && srq->pd == pd);
    CHECK(ibv_modify_srq(srq, &attr.attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
    struct ibv_srq_attr queried;
    CHECK(!ibv_query_srq(srq, &queried) && queried.max_wr >= 4 && queried.srq_limit == 0);

    struct ibv_ah_attr ah = { .port_num = 1 };
    FAILS(ibv_create_ah(pd, &ah), EINVAL);
    ah = (struct ibv_ah_attr){ .port_num = 2, .is_global = 1, .grh.sgid_index = 1 };
    CHECK(!ibv_query_gid(context, 1, 1, &ah.grh.dgid));
    FAILS(ibv_create_ah(pd, &ah), EINVAL);
    ah.port_num = 1;
    ah.grh.sgid_index = 99;
    FAILS(ibv_create_ah(pd, &ah), EINVAL);
    FAILS(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
    struct ibv_alloc_dm_attr dm = { .length = 64 };
    FAILS(ibv_alloc_dm(context, &dm), EOPNOTSUPP);
    struct ibv_td_init_attr td = { 0 };
    FAILS(ibv_alloc_td(context, &td), EOPNOTSUPP);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
}

static struct end create_qp(enum ibv_qp_type type, struct ibv_srq *receives, bool builder)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_context = (void *)0x55,
        .send_cq = cq,
        .recv_cq = cq,
        .srq = receives,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 128 },
        .qp_type = type,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ,
    };
    struct end end = { 0 };
    if (builder) {
        end.qp = ibv_create_qp_ex(context, &attr);
    } else {
        struct ibv_qp_init_attr plain = { attr.qp_context, cq, cq, receives, attr.cap, type, 0 };
        end.qp = ibv_create_qp(pd, &plain);
        CHECK(!end.qp || plain.cap.max_send_wr >= DEPTH);
    }
    CHECK(end.qp && end.qp->qp_context == (void *)0x55 && end.qp->state == IBV_QPS_RESET && end.qp->qp_num > 1);
    end.builder = ibv_qp_to_qp_ex(end.qp);
    CHECK(!!end.builder == builder);
    return end;
}

static void refuse_qps(void)
{
    struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RAW_PACKET };
    FAILS(ibv_create_qp(pd, &attr), EOPNOTSUPP);
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = NULL;
    FAILS(ibv_create_qp(pd, &attr), EINVAL);
    attr.send_cq = cq;
    attr.cap.max_send_sge = 1000;
    FAILS(ibv_create_qp(pd, &attr), EINVAL);
    struct ibv_qp_init_attr_ex unknown = {
        .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    };
    FAILS(ibv_create_qp_ex(context, &unknown), EOPNOTSUPP);
    unknown.qp_type = IBV_QPT_UD;
    unknown.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
    FAILS(ibv_create_qp_ex(context, &unknown), EOPNOTSUPP);
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
    bool is_rc = qp->qp_type == IBV_QPT_RC;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (is_rc ? IBV_ACCESS_REMOTE_READ : 0),
    };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    CHECK(qp->state == IBV_QPS_INIT);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer->qp_num;
    attr.rq_psn = 0xfffffe;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    CHECK(!ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid));
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    CHECK(!ibv_modify_qp(qp, &attr, mask | (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 0xfffffe;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (is_rc ? mask : 0)));
    struct ibv_qp_attr queried;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(qp, &queried, IBV_QP_STATE, &init));
    CHECK(queried.qp_state == IBV_QPS_RTS && queried.dest_qp_num == peer->qp_num && queried.sq_psn == 0xfffffe);
    CHECK(queried.path_mtu == IBV_MTU_1024 && queried.ah_attr.grh.sgid_index == 1 && queried.port_num == 1);
    CHECK(init.send_cq == cq && init.qp_context == (void *)0x55 && init.qp_type == qp->qp_type);
}

static struct ibv_wc completion(void)
{
    struct ibv_wc wc;
    time_t end = time(NULL) + TIMEOUT_SECONDS;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
        CHECK(time(NULL) < end);
    CHECK(polled == 1);
    return wc;
}

static struct ibv_sge sge_of(size_t offset, uint32_t length)
{
    return (struct ibv_sge){ .addr = (uintptr_t)memory + offset, .length = length, .lkey = mr->lkey };
}

static void post_receive(struct ibv_qp *qp, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sges[2] = { sge_of(offset, length / 2), sge_of(offset + length / 2, length - length / 2) };
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sges, .num_sge = 2 }, *bad;
    CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* A SEND and its receive complete in any order. */
static void expect_both(struct ibv_wc want_send, struct ibv_wc want_receive)
{
    for (int left = 2; left; left--) {
        struct ibv_wc wc = completion();
        struct ibv_wc want = wc.opcode & IBV_WC_RECV ? want_receive : want_send;
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == want.wr_id && wc.opcode == want.opcode);
        if (wc.opcode & IBV_WC_RECV) {
            CHECK(wc.byte_len == want.byte_len && wc.wc_flags == want.wc_flags && wc.qp_num == want.qp_num);
            CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) || wc.imm_data == want.imm_data);
        }
    }
}

static void send_lists(struct end from, struct end to)
{
    for (size_t byte = 0; byte < HALF; byte++)
        memory[byte] = (uint8_t)(byte * 7 + 1);
    memset(memory + HALF, 0, HALF);
    post_receive(to.qp, 7, HALF, HALF);
    struct ibv_sge pieces[3] = { sge_of(0, 1000), sge_of(1000, 1), sge_of(1001, HALF - 1001) };
    struct ibv_send_wr send = { .wr_id = 1, .sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_SEND_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(0x01020304) }, *bad = NULL;
    CHECK(!ibv_post_send(from.qp, &send, &bad));
    expect_both((struct ibv_wc){ .wr_id = 1, .opcode = IBV_WC_SEND },
        (struct ibv_wc){ .wr_id = 7, .opcode = IBV_WC_RECV, .byte_len = HALF, .wc_flags = IBV_WC_WITH_IMM,
            .imm_data = htobe32(0x01020304), .qp_num = to.qp->qp_num });
    CHECK(!memcmp(memory, memory + HALF, HALF));

    /* Inline: the bytes may change after the post, and need no region. */
    uint8_t own[6] = "hello";
    post_receive(to.qp, 8, HALF, 64);
    struct ibv_sge words[2] = { { (uintptr_t)own, 2, 0 }, { (uintptr_t)own + 2, 4, 0 } };
    struct ibv_send_wr inlined = { .wr_id = 2, .sg_list = words, .num_sge = 2, .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
    CHECK(!ibv_post_send(from.qp, &inlined, &bad));
    memset(own, 0, sizeof own);
    expect_both((struct ibv_wc){ .wr_id = 2, .opcode = IBV_WC_SEND },
        (struct ibv_wc){ .wr_id = 8, .opcode = IBV_WC_RECV, .byte_len = 6, .qp_num = to.qp->qp_num });
    CHECK(!strcmp((char *)memory + HALF, "hello"));

    /* The second request of the list is refused: bad_wr points to it, and the first is sent. */
    struct ibv_sge target = sge_of(0, 16);
    struct ibv_send_wr bad_wr = { .wr_id = 4, .sg_list = &target, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
    struct ibv_send_wr write = { .wr_id = 3, .next = &bad_wr, .sg_list = &target, .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { (uintptr_t)memory + HALF + 100, mr->rkey } };
    CHECK(ibv_post_send(from.qp, &write, &bad) == EOPNOTSUPP && bad == &bad_wr);
    struct ibv_wc wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 3 && wc.opcode == IBV_WC_RDMA_WRITE);
    struct ibv_send_wr wide = { .sg_list = &target, .num_sge = 5, .opcode = IBV_WR_SEND };
    CHECK(ibv_post_send(from.qp, &wide, &bad) == EINVAL && bad == &wide);
    wide.num_sge = -1;
    CHECK(ibv_post_send(from.qp, &wide, &bad) == EINVAL);
}

static void build(struct end from, struct end to)
{
    memset(memory + HALF, 0, HALF);
    ibv_wr_start(from.builder);
    from.builder->wr_id = 11;
    from.builder->wr_flags = 0;
    ibv_wr_rdma_write(from.builder, mr->rkey, (uintptr_t)memory + HALF);
    ibv_wr_set_sge(from.builder, mr->lkey, (uintptr_t)memory, 512);
    from.builder->wr_id = 12;
    from.builder->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(from.builder, mr->rkey, (uintptr_t)memory + HALF + 512);
    struct ibv_data_buf pieces[2] = { { "ab", 2 }, { "cd", 2 } };
    ibv_wr_set_inline_data_list(from.builder, 2, pieces);
    CHECK(!ibv_wr_complete(from.builder));
    struct ibv_wc wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 12 && wc.opcode == IBV_WC_RDMA_WRITE);
    /* A WRITE of UC completes when it is sent. */
    time_t end = time(NULL) + TIMEOUT_SECONDS;
    while (memcmp(memory + HALF + 512, "abcd", 4))
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0 && time(NULL) < end);
    CHECK(!memcmp(memory, memory + HALF, 512));

    ibv_wr_start(from.builder);
    ibv_wr_send(from.builder);
    ibv_wr_set_inline_data(from.builder, "ab", 2);
    ibv_wr_abort(from.builder);
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);

    /* After an error nothing is posted. */
    struct ibv_sge many[5] = { sge_of(0, 1), sge_of(1, 1), sge_of(2, 1), sge_of(3, 1), sge_of(4, 1) };
    for (int refused = 0; refused < 4; refused++) {
        ibv_wr_start(from.builder);
        from.builder->wr_id = 16;
        from.builder->wr_flags = IBV_SEND_SIGNALED;
        if (refused != 3) {
            ibv_wr_rdma_write(from.builder, mr->rkey, (uintptr_t)memory + HALF);
            ibv_wr_set_sge_list(from.builder, 2, many);
            ibv_wr_rdma_write(from.builder, mr->rkey, (uintptr_t)memory + HALF);
        }
        if (refused == 0)
            ibv_wr_set_sge_list(from.builder, 5, many);
        else if (refused == 1)
            ibv_wr_set_sge_list(from.builder, SIZE_MAX, many);
        else if (refused == 2)
            ibv_wr_set_inline_data(from.builder, memory, SIZE_MAX);
        else
            ibv_wr_set_inline_data(from.builder, memory, 1);
        ibv_wr_set_sge(from.builder, mr->lkey, (uintptr_t)memory, 1);
        CHECK(ibv_wr_complete(from.builder) == EINVAL && ibv_poll_cq(cq, 1, &wc) == 0);
    }
    CHECK(ibv_wr_complete(from.builder) == EINVAL);

    post_receive(to.qp, 14, HALF, 64);
    ibv_wr_start(from.builder);
    from.builder->wr_id = 13;
    ibv_wr_rdma_write_imm(from.builder, mr->rkey, (uintptr_t)memory + HALF, htobe32(9));
    ibv_wr_set_inline_data(from.builder, "xyz", 3);
    CHECK(!ibv_wr_complete(from.builder));
    expect_both((struct ibv_wc){ .wr_id = 13, .opcode = IBV_WC_RDMA_WRITE },
        (struct ibv_wc){ .wr_id = 14, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 3, .wc_flags = IBV_WC_WITH_IMM,
            .imm_data = htobe32(9), .qp_num = to.qp->qp_num });

    if (from.qp->qp_type != IBV_QPT_RC)
        return;
    memset(memory, 0, 64);
    ibv_wr_start(from.builder);
    from.builder->wr_id = 15;
    ibv_wr_rdma_read(from.builder, mr->rkey, (uintptr_t)memory + HALF);
    struct ibv_sge list[2] = { sge_of(0, 1), sge_of(1, 2) };
    ibv_wr_set_sge_list(from.builder, 2, list);
    CHECK(!ibv_wr_complete(from.builder));
    wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 15 && wc.opcode == IBV_WC_RDMA_READ);
    CHECK(!memcmp(memory, "xyz", 3));
}

static void *acknowledge_late(void *argument)
{
    usleep(50000);
    ibv_ack_cq_events(argument, 1);
    return NULL;
}

static void wait_for_events(struct end from, struct end to)
{
    struct ibv_cq *event_cq;
    void *cq_context;
    int flags = fcntl(channel->fd, F_GETFL);
    CHECK(!(flags & O_NONBLOCK));
    CHECK(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK));
    errno = 0;
    CHECK(ibv_get_cq_event(channel, &event_cq, &cq_context) == -1 && errno == EAGAIN);
    CHECK(!fcntl(channel->fd, F_SETFL, flags));
    CHECK(!ibv_req_notify_cq(cq, 0));
    post_receive(to.qp, 21, HALF, 64);
    struct ibv_sge sge = sge_of(0, 8);
    struct ibv_send_wr send = { .wr_id = 20, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED }, *bad;
    CHECK(!ibv_post_send(from.qp, &send, &bad));
    struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
    CHECK(poll(&readable, 1, TIMEOUT_SECONDS * 1000) == 1);
    CHECK(!ibv_get_cq_event(channel, &event_cq, &cq_context));
    CHECK(event_cq == cq && cq_context == (void *)0x1234);
    expect_both((struct ibv_wc){ .wr_id = 20, .opcode = IBV_WC_SEND },
        (struct ibv_wc){ .wr_id = 21, .opcode = IBV_WC_RECV, .byte_len = 8, .qp_num = to.qp->qp_num });
    CHECK(poll(&readable, 1, 0) == 0);
    /* The destruction of the queue, at the end, waits for this acknowledgement. */
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, acknowledge_late, cq) && !pthread_detach(thread));
}

static void fail_and_flush(struct end from, struct end to)
{
    struct ibv_sge sge = sge_of(0, 8);
    struct ibv_send_wr write = { .wr_id = 30, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { (uintptr_t)memory, mr->rkey ^ 0x5555 } }, *bad;
    CHECK(!ibv_post_send(from.qp, &write, &bad));
    struct ibv_wc wc = completion();
    CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 30 && wc.qp_num == from.qp->qp_num);
    struct ibv_async_event event;
    struct pollfd readable = { .fd = context->async_fd, .events = POLLIN };
    CHECK(poll(&readable, 1, TIMEOUT_SECONDS * 1000) == 1);
    CHECK(!ibv_get_async_event(context, &event));
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == to.qp);
    ibv_ack_async_event(&event);
    int flags = fcntl(context->async_fd, F_GETFL);
    CHECK(!fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK));
    errno = 0;
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(from.qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
    CHECK(!ibv_post_send(from.qp, &write, &bad));
    CHECK(completion().status == IBV_WC_WR_FLUSH_ERR);
}

/* The clock of the device, which has the unit of timestamps. */
static uint64_t clock_of_completions(void)
{
    struct ibv_device_attr_ex attr;
    CHECK(!ibv_query_device_ex(context, NULL, &attr));
    CHECK(attr.completion_timestamp_mask == UINT64_MAX && attr.hca_core_clock == NANOS / 1000);
    struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
    CHECK(!ibv_query_rt_values_ex(context, &values));
    return values.raw_clock.tv_sec * NANOS + values.raw_clock.tv_nsec;
}

static void read_fields(void)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
    struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &attr);
    CHECK(extended && ibv_cq_ex_to_cq(extended)->cqe >= 4);
    attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
    FAILS(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
    CHECK(!extended->read_completion_ts && !extended->read_completion_wallclock_ns);
    CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
    attr.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    CHECK((extended = ibv_create_cq_ex(context, &attr)));
    struct ibv_poll_cq_attr poll_attr = { 0 };
    CHECK(ibv_start_poll(extended, &poll_attr) == ENOENT);
    struct ibv_qp_init_attr init = { .send_cq = ibv_cq_ex_to_cq(extended), .recv_cq = ibv_cq_ex_to_cq(extended),
        .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    struct ibv_qp_attr to_init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    CHECK(!ibv_modify_qp(qp, &to_init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_recv_wr second = { .wr_id = 42 }, first = { .wr_id = 41, .next = &second }, *bad;
    CHECK(!ibv_post_recv(qp, &first, &bad));
    struct ibv_qp_attr to_err = { .qp_state = IBV_QPS_ERR };
    CHECK(!ibv_modify_qp(qp, &to_err, IBV_QP_STATE));
    uint64_t before = clock_of_completions();
    time_t begin = time(NULL), end = begin + TIMEOUT_SECONDS;
    while (ibv_start_poll(extended, &poll_attr) == ENOENT)
        CHECK(time(NULL) < end);
    uint64_t first_at = ibv_wc_read_completion_ts(extended);
    CHECK(first_at >= before && first_at <= clock_of_completions());
    CHECK((time_t)(ibv_wc_read_completion_wallclock_ns(extended) / NANOS) - begin <= TIMEOUT_SECONDS);
    CHECK(extended->wr_id == 41 && extended->status == IBV_WC_WR_FLUSH_ERR);
    CHECK(ibv_wc_read_qp_num(extended) == qp->qp_num && ibv_wc_read_vendor_err(extended) == 0);
    CHECK(!ibv_next_poll(extended) && extended->wr_id == 42);
    CHECK(ibv_wc_read_completion_ts(extended) >= first_at);
    CHECK(ibv_next_poll(extended) == ENOENT);
    ibv_end_poll(extended);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(extended)) == EBUSY);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
}

static void share_receives(void)
{
    struct end from = create_qp(IBV_QPT_RC, srq, true), to = create_qp(IBV_QPT_RC, srq, false);
    connect_to(from.qp, to.qp);
    connect_to(to.qp, from.qp);
    struct ibv_sge sge = sge_of(HALF, 64);
    struct ibv_recv_wr wr = { .wr_id = 51, .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_recv(to.qp, &wr, &bad) == EINVAL && bad == &wr);
    CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    ibv_wr_start(from.builder);
    from.builder->wr_id = 50;
    from.builder->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send_imm(from.builder, htobe32(5));
    ibv_wr_set_sge(from.builder, mr->lkey, (uintptr_t)memory, 32);
    CHECK(!ibv_wr_complete(from.builder));
    expect_both((struct ibv_wc){ .wr_id = 50, .opcode = IBV_WC_SEND },
        (struct ibv_wc){ .wr_id = 51, .opcode = IBV_WC_RECV, .byte_len = 32, .wc_flags = IBV_WC_WITH_IMM,
            .imm_data = htobe32(5), .qp_num = to.qp->qp_num });
    CHECK(ibv_destroy_srq(srq) == EBUSY);
    CHECK(!ibv_destroy_qp(from.qp) && !ibv_destroy_qp(to.qp));
}

#define QKEY 0x11223344
#define GRH 40

/* A queue pair of UD in RTS, whose receives complete on `receive_cq`. */
static struct end create_datagram_qp(struct ibv_cq *receive_cq)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq,
        .recv_cq = receive_cq,
        .cap = { DEPTH, DEPTH, 4, 4, 128 },
        .qp_type = IBV_QPT_UD,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
    };
    struct end end = { .qp = ibv_create_qp_ex(context, &attr) };
    CHECK(end.qp && (end.builder = ibv_qp_to_qp_ex(end.qp)) && !end.builder->wr_rdma_write);
    struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .sq_psn = 0xffffff };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    CHECK(ibv_modify_qp(end.qp, &to, mask | IBV_QP_ACCESS_FLAGS) == EINVAL);
    CHECK(!ibv_modify_qp(end.qp, &to, mask | IBV_QP_QKEY));
    to.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(end.qp, &to, IBV_QP_STATE));
    to.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(end.qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN));
    struct ibv_qp_attr queried;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(end.qp, &queried, IBV_QP_QKEY, &init));
    CHECK(queried.qkey == QKEY && queried.qp_state == IBV_QPS_RTS && init.qp_type == IBV_QPT_UD);
    return end;
}

static void check_datagram(const struct ibv_wc *wc, struct end from, struct end to, uint32_t length)
{
    CHECK(wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV && wc->byte_len == GRH + length);
    CHECK(wc->qp_num == to.qp->qp_num && wc->src_qp == from.qp->qp_num && wc->sl == 0xa);
    CHECK(wc->wc_flags & IBV_WC_GRH);
}

/* An answer to the sender, by an address handle from the completion and the GRH area. */
static void answer(struct ibv_wc *wc, struct end from, struct end to, struct ibv_ah_attr *wanted)
{
    struct ibv_grh *grh = (struct ibv_grh *)(memory + HALF);
    struct ibv_ah_attr attr;
    CHECK(!ibv_init_ah_from_wc(context, 1, wc, grh, &attr));
    CHECK(attr.is_global && attr.port_num == 1 && attr.grh.sgid_index == 1);
    CHECK(!memcmp(&attr.grh.dgid, &wanted->grh.dgid, sizeof attr.grh.dgid) && attr.grh.traffic_class == 0x68);
    CHECK(ibv_init_ah_from_wc(context, 2, wc, grh, &attr) == -1);
    struct ibv_wc without = *wc;
    without.wc_flags = 0;
    FAILS(ibv_create_ah_from_wc(pd, &without, grh, 1), EINVAL);
    struct ibv_ah *back = ibv_create_ah_from_wc(pd, wc, grh, 1);
    CHECK(back && back->pd == pd && back->context == context);
    post_receive(from.qp, 62, HALF, 64);
    struct ibv_sge sge = sge_of(0, 8);
    struct ibv_send_wr reply = { .wr_id = 61, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED, .wr.ud = { back, wc->src_qp, QKEY } }, *bad;
    CHECK(!ibv_post_send(to.qp, &reply, &bad));
    /* A posted datagram is sent even if its address handle is destroyed. */
    CHECK(!ibv_destroy_ah(back));
    for (int left = 2; left; left--) {
        struct ibv_wc done = completion();
        if (done.opcode & IBV_WC_RECV)
            check_datagram(&done, to, from, 8);
        else
            CHECK(done.status == IBV_WC_SUCCESS && done.wr_id == 61);
    }
}

static void datagrams(void)
{
    struct ibv_cq_init_attr_ex cq_attr = { .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
    struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &cq_attr);
    CHECK(extended);
    struct end from = create_datagram_qp(cq), to = create_datagram_qp(cq);
    struct end fields = create_datagram_qp(ibv_cq_ex_to_cq(extended));
    struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = 1, .traffic_class = 0x68 } };
    CHECK(!ibv_query_gid(context, 1, 1, &attr.grh.dgid));
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah && ah->context == context && ah->pd == pd);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);

    memset(memory + HALF, 0xff, HALF);
    post_receive(to.qp, 60, HALF, 64);
    ibv_wr_start(from.builder);
    from.builder->wr_id = 59;
    from.builder->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send_imm(from.builder, htobe32(7));
    ibv_wr_set_ud_addr(from.builder, ah, to.qp->qp_num, QKEY);
    ibv_wr_set_inline_data(from.builder, "datagram", 9);
    CHECK(!ibv_wr_complete(from.builder));
    struct ibv_wc received = { 0 };
    for (int left = 2; left; left--) {
        struct ibv_wc wc = completion();
        if (wc.opcode & IBV_WC_RECV)
            received = wc;
        else
            CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 59 && wc.opcode == IBV_WC_SEND && !wc.wc_flags);
    }
    check_datagram(&received, from, to, 9);
    CHECK(received.wc_flags & IBV_WC_WITH_IMM && received.imm_data == htobe32(7));
    CHECK(memory[HALF] == 0 && memory[HALF + 20] == 0x45 && memory[HALF + 21] == 0x68);
    CHECK(!memcmp(memory + HALF + 32, attr.grh.dgid.raw + 12, 4));
    CHECK(!strcmp((char *)memory + HALF + GRH, "datagram"));
    answer(&received, from, to, &attr);

    /* The fields of an extended completion queue. */
    post_receive(fields.qp, 63, HALF, 64);
    struct ibv_sge sge = sge_of(0, 16);
    struct ibv_send_wr send = { .wr_id = 64, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED, .wr.ud = { ah, fields.qp->qp_num, QKEY } }, *bad;
    CHECK(!ibv_post_send(from.qp, &send, &bad));
    CHECK(completion().wr_id == 64);
    struct ibv_poll_cq_attr poll_attr = { 0 };
    time_t end = time(NULL) + TIMEOUT_SECONDS;
    while (ibv_start_poll(extended, &poll_attr) == ENOENT)
        CHECK(time(NULL) < end);
    CHECK(extended->wr_id == 63 && ibv_wc_read_byte_len(extended) == GRH + 16 && ibv_wc_read_sl(extended) == 0xa);
    CHECK(ibv_wc_read_src_qp(extended) == from.qp->qp_num && ibv_wc_read_wc_flags(extended) == IBV_WC_GRH);
    ibv_end_poll(extended);

    /* A queue pair of UD has no WRITE; a datagram without an address handle, or longer than the path MTU, fails. */
    send.opcode = IBV_WR_RDMA_WRITE;
    CHECK(ibv_post_send(from.qp, &send, &bad) == EINVAL && bad == &send);
    struct ibv_sge all[3] = { sge_of(0, HALF), sge_of(0, HALF), sge_of(0, HALF) };
    struct { struct ibv_ah *ah; int pieces; enum ibv_wc_status status; } wrong[] = {
        { NULL, 1, IBV_WC_LOC_QP_OP_ERR }, { ah, 3, IBV_WC_LOC_LEN_ERR } };
    for (int i = 0; i < 2; i++) {
        struct ibv_send_wr refused = { .wr_id = 65, .sg_list = all, .num_sge = wrong[i].pieces, .opcode = IBV_WR_SEND,
            .wr.ud = { wrong[i].ah, to.qp->qp_num, QKEY } };
        CHECK(!ibv_post_send(from.qp, &refused, &bad));
        CHECK(completion().status == wrong[i].status);
        struct ibv_qp_attr to_rts = { .qp_state = IBV_QPS_RTS };
        CHECK(!ibv_modify_qp(from.qp, &to_rts, IBV_QP_STATE));
    }
    CHECK(!ibv_destroy_ah(ah));
    CHECK(!ibv_destroy_qp(from.qp) && !ibv_destroy_qp(to.qp) && !ibv_destroy_qp(fields.qp));
    CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
}

int main(void)
{
    open_device();
    query();
    create();
    refuse_qps();
    enum ibv_qp_type types[] = { IBV_QPT_UC, IBV_QPT_RC };
    for (int type = 0; type < 2; type++) {
        struct end from = create_qp(types[type], NULL, true), to = create_qp(types[type], NULL, false);
        connect_to(from.qp, to.qp);
        connect_to(to.qp, from.qp);
        send_lists(from, to);
        build(from, to);
        CHECK(ibv_destroy_cq(cq) == EBUSY);
        if (types[type] == IBV_QPT_RC) {
            wait_for_events(from, to);
            fail_and_flush(from, to);
        }
        CHECK(!ibv_destroy_qp(from.qp) && !ibv_destroy_qp(to.qp));
    }
    read_fields();
    share_receives();
    datagrams();
    CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    puts("all checks passed");
    return 0;
}
