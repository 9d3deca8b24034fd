/* Eight threads that post to and poll queues of their own and queues that all share, on a port that receives every frame
 * that it sends. Each queue pair is connected with itself. Argument: messages of each thread on each of its queue pairs. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define THREADS 8
#define DEPTH 64
#define BYTES 64

/* A queue pair and its completion queue. A message has two completions: of the SEND, and of its receive. The completion
 * queue has room for all, because a place in a send or receive queue is free again as soon as its work request completes,
 * and not only when the completion is polled. */
struct queues {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    unsigned long wanted, completed;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct queues shared;
static unsigned long messages;
static uint8_t memory[2 * BYTES];

static struct queues create(unsigned long wanted)
{
    struct queues new = { .cq = ibv_create_cq(context, 2 * (int)wanted, NULL, NULL, 0), .wanted = 2 * wanted };
    CHECK(new.cq);
    struct ibv_qp_init_attr init = { .send_cq = new.cq, .recv_cq = new.cq, .cap = { DEPTH, DEPTH, 1, 1, 0 },
        .qp_type = IBV_QPT_RC };
    new.qp = ibv_create_qp(pd, &init);
    CHECK(new.qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024,
        .dest_qp_num = new.qp->qp_num, .rq_psn = 5, .sq_psn = 5, .max_rd_atomic = 1, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } } };
    CHECK(!ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(new.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(new.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(new.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
        IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
    return new;
}

static void destroy(struct queues *queues)
{
    CHECK(!ibv_destroy_qp(queues->qp));
    CHECK(!ibv_destroy_cq(queues->cq));
}

/* Posts a receive and a SEND, as far as the queues have room and messages are left. `recvs` and `sends` count the posts of
 * the calling thread. */
static void post(struct queues *queues, unsigned long *recvs, unsigned long *sends)
{
    struct ibv_sge to = { (uintptr_t)memory, BYTES, mr->lkey }, from = { (uintptr_t)memory + BYTES, BYTES, mr->lkey };
    struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
    struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
        *bad_send;
    int error = *recvs < messages ? ibv_post_recv(queues->qp, &recv, &bad_recv) : ENOMEM;
    CHECK(!error || error == ENOMEM);
    *recvs += !error;
    error = *sends < *recvs ? ibv_post_send(queues->qp, &send, &bad_send) : ENOMEM;
    CHECK(!error || error == ENOMEM);
    *sends += !error;
}

static void poll(struct queues *queues)
{
    struct ibv_wc wcs[8];
    int polled = ibv_poll_cq(queues->cq, 8, wcs);
    CHECK(polled >= 0);
    for (int i = 0; i < polled; i++)
        CHECK(wcs[i].status == IBV_WC_SUCCESS);
    __atomic_add_fetch(&queues->completed, (unsigned long)polled, __ATOMIC_RELAXED);
}

static int is_done(struct queues *queues)
{
    return __atomic_load_n(&queues->completed, __ATOMIC_RELAXED) >= queues->wanted;
}

static void *work(void *argument)
{
    (void)argument;
    struct queues own = create(messages);
    unsigned long recvs[2] = { 0 }, sends[2] = { 0 };
    while (!is_done(&own) || !is_done(&shared)) {
        post(&own, &recvs[0], &sends[0]);
        post(&shared, &recvs[1], &sends[1]);
        poll(&own);
        poll(&shared);
    }
    destroy(&own);
    return NULL;
}

int main(int argc, char **argv)
{
    messages = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
    CHECK(messages > 0);
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    CHECK(list && devices > 0);
    context = ibv_open_device(list[devices - 1]);
    CHECK(context);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    CHECK(pd);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    shared = create(THREADS * messages);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    CHECK(shared.completed == shared.wanted);
    destroy(&shared);
    CHECK(!ibv_dereg_mr(mr));
    CHECK(!ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
    printf("all messages completed\n");
    return 0;
}
