/* Two processes exchange one datagram. `datagram receive` prints the QPN of its queue pair, sends no packet, and ends
 * when a datagram has arrived. `datagram send QPN` sends a datagram to the queue pair QPN; the destination GID is the
 * GID with index 1 of the sender's own port. */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

#define QKEY 0x1234
#define GRH 40
#define TIMEOUT_SECONDS 20

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0);
    struct ibv_context *context = ibv_open_device(list[count - 1]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(pd && cq);
    static char memory[GRH + 64];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(mr && qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
    struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
    CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    struct ibv_wc wc;
    time_t end = time(NULL) + TIMEOUT_SECONDS;
    if (!strcmp(argv[1], "receive")) {
        printf("%u\n", qp->qp_num);
        fflush(stdout);
        while (ibv_poll_cq(cq, 1, &wc) == 0)
            CHECK(time(NULL) < end);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + 6 && !strcmp(memory + GRH, "hello"));
    } else {
        CHECK(argc == 3);
        attr.qp_state = IBV_QPS_RTS;
        CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
        struct ibv_ah_attr ah_attr = { .port_num = 1, .is_global = 1, .grh.sgid_index = 1 };
        CHECK(!ibv_query_gid(context, 1, 1, &ah_attr.grh.dgid));
        struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
        CHECK(ah);
        strcpy(memory, "hello");
        sge.length = 6;
        struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_SIGNALED, .wr.ud = { ah, (uint32_t)atoi(argv[2]), QKEY } }, *bad_send;
        CHECK(!ibv_post_send(qp, &send, &bad_send));
        while (ibv_poll_cq(cq, 1, &wc) == 0)
            CHECK(time(NULL) < end);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2);
    }
    puts("done");
    return 0;
}
