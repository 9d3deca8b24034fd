/* Random calls of the C interface, well typed but otherwise of any kind, from several threads: objects are destroyed in
 * any order, attributes are out of range, and the objects of a call may be of different contexts. Each call must return
 * one of the errors of its manual page, and none may crash. Arguments: seed, threads, calls of each thread. */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PDS 3
#define MRS 6
#define CQS 4
#define SRQS 2
#define QPS 6
#define CHANNELS 2
#define AHS 3
#define CONTEXTS 2
#define KINDS 16
#define BYTES 65536

/* A place for an object. A thread that uses the object has the mutex, because a program must not use an object that
 * another thread destroys. */
struct place {
    pthread_mutex_t mutex;
    void *object;
};

static struct ibv_device *device;
static struct ibv_context *contexts[CONTEXTS];
static struct place pds[PDS], mrs[MRS], cqs[CQS], srqs[SRQS], qps[QPS], channels[CHANNELS], ahs[AHS];
static uint8_t memory[BYTES];
static unsigned long done[KINDS], refused[KINDS];

static __thread uint64_t state;

static uint32_t draw(uint32_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16) % bound;
}

static bool one_in(uint32_t bound)
{
    return draw(bound) == 0;
}

/* The objects of one call may therefore be of different contexts. */
static struct ibv_context *any_context(void)
{
    return contexts[draw(CONTEXTS)];
}

/* Locks a random place; null if another thread has it. A thread that already has places must not wait. */
static struct place *take(struct place *places, uint32_t count)
{
    struct place *place = &places[draw(count)];
    return pthread_mutex_trylock(&place->mutex) ? NULL : place;
}

static void leave(struct place *place)
{
    if (place)
        pthread_mutex_unlock(&place->mutex);
}

static void *object_of(struct place *place)
{
    return place ? place->object : NULL;
}

static void count(int kind, int error)
{
    static const int known[] = { 0, EINVAL, EBUSY, ENOMEM, EOPNOTSUPP, EFAULT, EACCES, ETIMEDOUT, EAGAIN, ENODATA };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (error == known[i]) {
            __atomic_add_fetch(error ? &refused[kind] : &done[kind], 1, __ATOMIC_RELAXED);
            return;
        }
    fprintf(stderr, "call of kind %d: errno %d (%s)\n", kind, error, strerror(error));
    exit(1);
}

/* Destroys the object of a place if it has one; otherwise keeps the new object, if there is room for one. */
#define CREATE_OR_DESTROY(kind, place, destroy, create)                                                               \
    do {                                                                                                              \
        if ((place)->object) {                                                                                        \
            int error = destroy;                                                                                      \
            count(kind, error);                                                                                       \
            if (!error)                                                                                               \
                (place)->object = NULL;                                                                               \
        } else {                                                                                                      \
            errno = 0;                                                                                                \
            (place)->object = create;                                                                                 \
            count(kind, (place)->object ? 0 : errno);                                                                 \
        }                                                                                                             \
    } while (0)

static void change_pd(void)
{
    struct place *pd = take(pds, PDS);
    if (pd)
        CREATE_OR_DESTROY(0, pd, ibv_dealloc_pd(pd->object), ibv_alloc_pd(any_context()));
    leave(pd);
}

static void change_mr(void)
{
    struct place *mr = take(mrs, MRS), *pd = take(pds, PDS);
    if (mr && object_of(pd)) {
        size_t offset = draw(BYTES), length = one_in(8) ? (size_t)1 << 46 : draw(BYTES - (uint32_t)offset);
        CREATE_OR_DESTROY(1, mr, ibv_dereg_mr(mr->object),
            ibv_reg_mr_iova(pd->object, memory + offset, length, one_in(4) ? draw(1 << 20) : (uintptr_t)memory + offset,
                (int)(one_in(4) ? draw(512) : draw(8))));
    }
    leave(pd);
    leave(mr);
}

static void change_channel(void)
{
    struct place *channel = take(channels, CHANNELS);
    if (channel)
        CREATE_OR_DESTROY(2, channel, ibv_destroy_comp_channel(channel->object), ibv_create_comp_channel(any_context()));
    leave(channel);
}

static void change_cq(void)
{
    struct place *cq = take(cqs, CQS), *channel = take(channels, CHANNELS);
    if (cq)
        CREATE_OR_DESTROY(3, cq, ibv_destroy_cq(cq->object),
            ibv_create_cq(any_context(), one_in(8) ? (int)draw(UINT32_MAX) : (int)draw(64), cq, object_of(channel), one_in(8)));
    leave(channel);
    leave(cq);
}

static void change_srq(void)
{
    struct place *srq = take(srqs, SRQS), *pd = take(pds, PDS);
    struct ibv_srq_init_attr attr = { srq, { draw(64), draw(40), draw(8) } };
    if (srq && object_of(pd))
        CREATE_OR_DESTROY(4, srq, ibv_destroy_srq(srq->object), ibv_create_srq(pd->object, &attr));
    else if (object_of(srq))
        count(4, ibv_modify_srq(srq->object, &attr.attr, (int)draw(4)));
    leave(pd);
    leave(srq);
}

static void change_ah(void)
{
    struct place *ah = take(ahs, AHS), *pd = take(pds, PDS);
    struct ibv_ah_attr attr = { .is_global = !one_in(16), .port_num = one_in(16) ? 2 : 1,
        .grh = { .sgid_index = one_in(16) ? (uint8_t)draw(256) : 1, .flow_label = draw(1 << 20), .traffic_class = (uint8_t)draw(8) } };
    if (ah && object_of(pd)) {
        count(15, ibv_query_gid(any_context(), 1, 1, &attr.grh.dgid) ? errno : 0);
        CREATE_OR_DESTROY(15, ah, ibv_destroy_ah(ah->object), ibv_create_ah(pd->object, &attr));
    }
    leave(pd);
    leave(ah);
}

static void change_qp(void)
{
    struct place *qp = take(qps, QPS), *pd = take(pds, PDS), *send = take(cqs, CQS), *recv = take(cqs, CQS);
    struct place *srq = take(srqs, SRQS);
    static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
    struct ibv_qp_init_attr_ex attr = {
        .qp_context = qp,
        .send_cq = object_of(send),
        .recv_cq = recv ? recv->object : object_of(send),
        .srq = one_in(3) ? object_of(srq) : NULL,
        .cap = { draw(40), draw(40), draw(one_in(8) ? 100 : 4), draw(4), draw(one_in(8) ? 5000 : 256) },
        .qp_type = types[draw(4)],
        .sq_sig_all = one_in(2),
        .comp_mask = IBV_QP_INIT_ATTR_PD | (one_in(2) ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0) | (one_in(16) ? draw(64) : 0),
        .pd = object_of(pd),
        .send_ops_flags = draw(one_in(8) ? 1024 : 32),
    };
    if (qp && (qp->object || attr.pd))
        CREATE_OR_DESTROY(5, qp, ibv_destroy_qp(qp->object), ibv_create_qp_ex(any_context(), &attr));
    leave(srq);
    leave(recv);
    leave(send);
    leave(pd);
    leave(qp);
}

static void modify_qp(void)
{
    struct place *qp = take(qps, QPS), *peer = take(qps, QPS);
    struct ibv_qp *own = object_of(qp);
    if (own) {
        struct ibv_qp_attr attr = {
            .path_mtu = IBV_MTU_1024, .rq_psn = 5, .sq_psn = 5, .qp_access_flags = 7, .max_rd_atomic = 4,
            .max_dest_rd_atomic = 4, .min_rnr_timer = 1, .timeout = 8, .retry_cnt = 2, .rnr_retry = 1, .port_num = 1,
            .dest_qp_num = peer && peer->object ? ((struct ibv_qp *)peer->object)->qp_num : own->qp_num,
            .ah_attr = { .is_global = !one_in(16), .port_num = 1, .grh.sgid_index = 1 },
        };
        count(6, ibv_query_gid(any_context(), 1, 1, &attr.ah_attr.grh.dgid) ? errno : 0);
        int rc = own->qp_type == IBV_QPT_RC, ud = own->qp_type == IBV_QPT_UD, mask = IBV_QP_STATE;
        switch (own->state) {
        case IBV_QPS_RESET:
            attr.qp_state = IBV_QPS_INIT;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
            break;
        case IBV_QPS_INIT:
            attr.qp_state = IBV_QPS_RTR;
            mask |= ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            mask |= rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
            break;
        case IBV_QPS_RTR:
            attr.qp_state = IBV_QPS_RTS;
            mask |= IBV_QP_SQ_PSN;
            mask |= rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0;
            break;
        default:
            attr.qp_state = one_in(4) ? IBV_QPS_ERR : IBV_QPS_RESET;
        }
        if (one_in(8))
            attr.qp_state = draw(9);
        if (one_in(8))
            mask ^= 1 << draw(26);
        count(6, ibv_modify_qp(own, &attr, mask));
        struct ibv_qp_init_attr init;
        count(6, ibv_query_qp(own, &attr, mask, &init));
    }
    leave(peer);
    leave(qp);
}

static struct ibv_sge sge_of(struct ibv_mr *mr)
{
    uint32_t offset = draw(BYTES), length = draw(one_in(4) ? BYTES - offset + 1 : 64);
    uint64_t addr = mr && one_in(8) ? draw(1 << 20) : (uintptr_t)memory + offset % (BYTES - 64);
    return (struct ibv_sge){ addr, length > BYTES - 64 ? 64 : length, mr && !one_in(8) ? mr->lkey : draw(UINT32_MAX) };
}

static void post(void)
{
    struct place *qp = take(qps, QPS), *mr = take(mrs, MRS), *ah = take(ahs, AHS);
    struct ibv_qp *own = object_of(qp);
    struct ibv_mr *region = object_of(mr);
    bool ud = own && own->qp_type == IBV_QPT_UD;
    uint32_t peer = own ? own->qp_num : 0, qkey = one_in(8) ? draw(UINT32_MAX) : 0;
    struct ibv_sge sges[4] = { sge_of(region), sge_of(region), sge_of(region), sge_of(region) };
    if (own && one_in(2)) {
        struct ibv_recv_wr second = { 2, NULL, sges, (int)draw(5) - one_in(8) }, first = { 1, &second, sges, 1 }, *bad = NULL;
        int error = ibv_post_recv(own, &first, &bad);
        count(7, error);
        if (error && bad != &first && bad != &second)
            exit(2);
    } else if (own && !ibv_qp_to_qp_ex(own)) {
        struct ibv_send_wr wr = { .wr_id = 3, .sg_list = sges, .num_sge = (int)draw(5) - one_in(8), .opcode = draw(12),
            .send_flags = draw(32), .wr.rdma = { (uintptr_t)memory, region ? region->rkey : 0 } }, *bad = NULL;
        if (ud) {
            wr.opcode = one_in(8) ? draw(12) : IBV_WR_SEND + draw(2);
            wr.wr.ud.ah = object_of(ah);
            wr.wr.ud.remote_qpn = peer;
            wr.wr.ud.remote_qkey = qkey;
        }
        /* The bytes of an inline request must be the program's. */
        for (int i = 0; i < 4; i++)
            if (wr.send_flags & IBV_SEND_INLINE)
                sges[i].addr = (uintptr_t)memory;
        int error = ibv_post_send(own, &wr, &bad);
        count(8, error);
        if (error && bad != &wr)
            exit(2);
    } else if (own) {
        struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(own);
        ibv_wr_start(builder);
        for (uint32_t left = draw(4); left; left--) {
            builder->wr_id = left;
            builder->wr_flags = draw(8);
            if (ud) {
                ibv_wr_send(builder);
                if (!one_in(8))
                    ibv_wr_set_ud_addr(builder, object_of(ah), peer, qkey);
            } else {
                ibv_wr_rdma_write(builder, region ? region->rkey : 0, (uintptr_t)memory);
            }
            if (one_in(2))
                ibv_wr_set_sge_list(builder, draw(5), sges);
            else
                ibv_wr_set_inline_data(builder, memory, draw(300));
        }
        if (one_in(4))
            ibv_wr_abort(builder);
        else
            count(9, ibv_wr_complete(builder));
    }
    leave(ah);
    leave(mr);
    leave(qp);
}

static void post_shared(void)
{
    struct place *srq = take(srqs, SRQS), *mr = take(mrs, MRS);
    if (object_of(srq)) {
        struct ibv_sge sge = sge_of(object_of(mr));
        struct ibv_recv_wr wr = { 5, NULL, &sge, 1 }, *bad;
        count(10, ibv_post_srq_recv(srq->object, &wr, &bad));
        struct ibv_srq_attr attr;
        count(10, ibv_query_srq(srq->object, &attr));
    }
    leave(mr);
    leave(srq);
}

static void poll_cq(void)
{
    struct place *cq = take(cqs, CQS);
    if (object_of(cq)) {
        struct ibv_wc wcs[8];
        if (ibv_poll_cq(cq->object, (int)draw(9), wcs) < 0)
            count(11, errno);
        count(11, ibv_req_notify_cq(cq->object, one_in(2)));
    }
    leave(cq);
}

/* Completion events are taken and acknowledged, as a completion queue with such an event is not destroyed. */
static void take_event(void)
{
    struct place *channel = take(channels, CHANNELS);
    struct ibv_comp_channel *own = object_of(channel);
    if (own) {
        fcntl(own->fd, F_SETFL, O_NONBLOCK);
        struct ibv_cq *cq;
        void *cookie;
        int failed = ibv_get_cq_event(own, &cq, &cookie);
        count(13, failed ? errno : 0);
        if (!failed)
            ibv_ack_cq_events(cq, 1);
    }
    leave(channel);
}

/* A context of its own, with or without an object. */
static void open_and_close(void)
{
    struct ibv_context *own = ibv_open_device(device);
    count(14, own ? 0 : errno);
    if (!own)
        return;
    struct ibv_pd *pd = one_in(2) ? ibv_alloc_pd(own) : NULL;
    if (pd)
        count(14, ibv_dealloc_pd(pd));
    count(14, ibv_close_device(own));
}

static void query(void)
{
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    union ibv_gid gid;
    count(12, ibv_query_device(any_context(), &attr));
    count(12, ibv_query_port(any_context(), (uint8_t)draw(3), &port));
    count(12, ibv_query_gid(any_context(), (uint8_t)draw(3), (int)draw(6) - 1, &gid) ? errno : 0);
}

static void *work(void *argument)
{
    static void (*const calls[])(void) = { change_pd, change_mr, change_channel, change_cq, change_srq, change_ah, change_qp,
        modify_qp, modify_qp, modify_qp, post, post, post, post_shared, poll_cq, poll_cq, query, take_event, open_and_close };
    uint64_t *arguments = argument;
    state = arguments[0];
    for (uint64_t left = arguments[1]; left; left--)
        calls[draw(sizeof calls / sizeof *calls)]();
    return NULL;
}

static void destroy_all(struct place *places, uint32_t number, int (*destroy)(void *))
{
    for (uint32_t i = 0; i < number; i++)
        if (places[i].object && destroy(places[i].object)) {
            fprintf(stderr, "an object that nothing uses was not destroyed: errno %d\n", errno);
            exit(1);
        }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    uint64_t seed = strtoull(argv[1], NULL, 0), threads = strtoull(argv[2], NULL, 0), calls = strtoull(argv[3], NULL, 0);
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    device = list && devices ? list[devices - 1] : NULL;
    /* The query opens the port, which then stays open beside contexts that are opened and closed. */
    union ibv_gid gid;
    for (int i = 0; i < CONTEXTS; i++)
        contexts[i] = device ? ibv_open_device(device) : NULL;
    if (!contexts[CONTEXTS - 1] || threads > 64 || ibv_query_gid(contexts[0], 1, 1, &gid))
        return 2;
    ibv_free_device_list(list);
    struct { struct place *places; uint32_t number; } all[] = { { pds, PDS }, { mrs, MRS }, { cqs, CQS }, { srqs, SRQS },
        { qps, QPS }, { channels, CHANNELS }, { ahs, AHS } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (uint32_t j = 0; j < all[i].number; j++)
            pthread_mutex_init(&all[i].places[j].mutex, NULL);
    pthread_t handles[64];
    uint64_t arguments[64][2];
    for (uint64_t i = 0; i < threads; i++) {
        arguments[i][0] = (seed * 64 + i + 1) * 0x9e3779b97f4a7c15;
        arguments[i][1] = calls;
        if (pthread_create(&handles[i], NULL, work, arguments[i]))
            return 2;
    }
    for (uint64_t i = 0; i < threads; i++)
        pthread_join(handles[i], NULL);
    destroy_all(qps, QPS, (int (*)(void *))ibv_destroy_qp);
    destroy_all(srqs, SRQS, (int (*)(void *))ibv_destroy_srq);
    destroy_all(cqs, CQS, (int (*)(void *))ibv_destroy_cq);
    destroy_all(channels, CHANNELS, (int (*)(void *))ibv_destroy_comp_channel);
    destroy_all(ahs, AHS, (int (*)(void *))ibv_destroy_ah);
    destroy_all(mrs, MRS, (int (*)(void *))ibv_dereg_mr);
    destroy_all(pds, PDS, (int (*)(void *))ibv_dealloc_pd);
    for (int i = 0; i < CONTEXTS; i++)
        if (ibv_close_device(contexts[i]))
            return 1;
    for (int kind = 0; kind < KINDS; kind++)
        printf("%lu %lu\n", done[kind], refused[kind]);
    return 0;
}
