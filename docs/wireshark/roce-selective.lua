-- Shows in Wireshark and tshark what their dissector of RoCE v2 leaves out:
--
--   * RC SELECTIVE ACKNOWLEDGE (opcode 0xC0), the packet by which two ends of this project tell each other
--     what arrived out of order, the SENDs between them (0xE0 to 0xE5), which say for which receive they are,
--     and the reserved bits of READ requests (0x0C) between them, which say how many PSNs below belong to
--     READs; the formats are in docs/WIRE.md;
--   * congestion notification (0x81), FLUSH (0x1C), ATOMIC WRITE (0x1D), and the FECN and BECN bits, which
--     version 4.0 does not know.
--
-- It adds a subtree "RoCE v2 additions" behind the others (a post-dissector) and changes nothing else but
-- the Info column of those packets. Display filters: rocex.sack, rocex.sack.missing > 1, rocex.becn == 1.
--
--   tshark -X lua_script:roce-selective.lua -r FILE -Y rocex.sack
--
-- To have it always, copy it into the personal Lua plugins folder (Help, About Wireshark, Folders).

local rocex = Proto("rocex", "RoCE v2 additions")

local READ_REQUEST = 0x0C

local OPCODES = {
    [READ_REQUEST] = "RC RDMA READ REQUEST",
    [0x1C] = "RC FLUSH",
    [0x1D] = "RC ATOMIC WRITE",
    [0x81] = "CONGESTION NOTIFICATION",
    [0xC0] = "RC SELECTIVE ACKNOWLEDGE",
    [0xE0] = "RC NUMBERED SEND FIRST",
    [0xE1] = "RC NUMBERED SEND MIDDLE",
    [0xE2] = "RC NUMBERED SEND LAST",
    [0xE3] = "RC NUMBERED SEND LAST WITH IMMEDIATE",
    [0xE4] = "RC NUMBERED SEND ONLY",
    [0xE5] = "RC NUMBERED SEND ONLY WITH IMMEDIATE",
}

local BTH_BYTES, AETH_BYTES, SACKETH_BYTES, FETH_BYTES, RETH_BYTES, ICRC_BYTES = 12, 4, 4, 4, 16, 4
local CNP_RESERVED_BYTES, RECVETH_BYTES, IMMEDIATE_BYTES = 16, 8, 4
local SACK_VERSION = 1
-- 4,096 PSNs.
local BITMAP_BYTES_MAX = 512
local PSN_COUNT = 2 ^ 24

local field = {
    opcode = ProtoField.uint8("rocex.opcode", "Opcode", base.HEX, OPCODES),
    fecn = ProtoField.bool("rocex.fecn", "Forward explicit congestion notification (FECN)", 8, nil, 0x80),
    becn = ProtoField.bool("rocex.becn", "Backward explicit congestion notification (BECN)", 8, nil, 0x40),
    icrc = ProtoField.uint32("rocex.icrc", "Invariant CRC", base.HEX),

    sack = ProtoField.none("rocex.sack", "Selective acknowledge"),
    psn = ProtoField.uint24("rocex.sack.psn", "First PSN missing", base.HEX),
    syndrome = ProtoField.uint8("rocex.sack.syndrome", "Syndrome", base.HEX),
    msn = ProtoField.uint24("rocex.sack.msn", "Message sequence number", base.DEC),
    version = ProtoField.uint8("rocex.sack.version", "Version", base.DEC, nil, 0xF0),
    flags = ProtoField.uint8("rocex.sack.flags", "Flags", base.HEX, nil, 0x0F),
    duplicate = ProtoField.bool("rocex.sack.duplicate", "Trigger had been received before", 8, nil, 0x01),
    no_room = ProtoField.bool("rocex.sack.no_room", "Packet dropped for want of room", 8, nil, 0x02),
    trigger = ProtoField.uint24("rocex.sack.trigger", "PSN that triggered it", base.HEX),
    bitmap = ProtoField.bytes("rocex.sack.bitmap", "Bitmap"),
    received = ProtoField.uint32("rocex.sack.received", "Packets received ahead"),
    missing = ProtoField.uint32("rocex.sack.missing", "Packets missing before the last received"),
    first = ProtoField.uint24("rocex.sack.first", "Received from PSN", base.HEX),
    last = ProtoField.uint24("rocex.sack.last", "to PSN", base.HEX),

    receive = ProtoField.uint32("rocex.send.receive", "Receives taken by messages before it", base.DEC),
    packet = ProtoField.uint32("rocex.send.packet", "Packets of the message before it", base.DEC),
    immediate = ProtoField.uint32("rocex.send.immediate", "Immediate data", base.HEX),
    preceding_reads = ProtoField.uint16("rocex.read.preceding_reads", "PSNs of READs directly below", base.DEC),

    payload = ProtoField.bytes("rocex.send.payload", "Payload, with its padding"),

    cnp_reserved = ProtoField.bytes("rocex.cnp.reserved", "Reserved"),

    visible = ProtoField.bool("rocex.flush.global_visibility", "Global visibility", 32, nil, 0x01),
    persistent = ProtoField.bool("rocex.flush.persistence", "Persistence", 32, nil, 0x02),
    selectivity = ProtoField.uint32("rocex.flush.selectivity", "Selectivity", base.DEC, {
        [0] = "memory region range",
        [1] = "memory region",
    }, 0x30),
    va = ProtoField.uint64("rocex.reth.va", "Virtual address", base.HEX),
    rkey = ProtoField.uint32("rocex.reth.rkey", "Remote key", base.HEX),
    len = ProtoField.uint32("rocex.reth.len", "DMA length, bytes", base.DEC),
    value = ProtoField.uint64("rocex.atomic_write.value", "Value", base.HEX),
}
rocex.fields = field

local too_short = ProtoExpert.new("rocex.too_short", "The packet ends before its headers do", expert.group.MALFORMED,
    expert.severity.ERROR)
local other_version = ProtoExpert.new("rocex.sack.other_version", "A version that this script does not know",
    expert.group.UNDECODED, expert.severity.WARN)
local bad_bitmap = ProtoExpert.new("rocex.sack.bad_bitmap", "A bitmap has 0 to 128 words of 4 bytes",
    expert.group.MALFORMED, expert.severity.ERROR)
rocex.experts = { too_short, other_version, bad_bitmap }

local bth_opcode = Field.new("infiniband.bth.opcode")
local udp_length = Field.new("udp.length")

-- Adds the runs of received packets to `tree`; returns how many packets they are, and how many before the
-- last of them are missing, the first one included. Bit i of word w, from the least significant, stands for
-- PSN + 1 + 32 w + i.
local function add_runs(tree, bitmap, psn)
    local received, first, last = 0, nil, nil
    local function finish_run()
        if first then
            local run = tree:add(field.first, bitmap, (psn + 1 + first) % PSN_COUNT)
            run:add(field.last, bitmap, (psn + 1 + last) % PSN_COUNT):set_generated()
            run:set_generated()
            first = nil
        end
    end
    for n = 0, bitmap:len() * 8 - 1 do
        local word, bit = math.floor(n / 32), n % 32
        if bitmap:bitfield(32 * word + 31 - bit, 1) == 1 then
            received, first, last = received + 1, first or n, n
        else
            finish_run()
        end
    end
    finish_run()
    -- The PSN itself is missing, and stands for no bit.
    return received, last and last + 2 - received or 1
end

local function add_sack(tree, bth, body, info)
    local item = tree:add(field.sack, body)
    local psn = bth(9, 3):uint()
    item:add(field.psn, bth(9, 3))
    if body:len() < AETH_BYTES + SACKETH_BYTES then
        return item:add_proto_expert_info(too_short)
    end
    item:add(field.syndrome, body(0, 1))
    item:add(field.msn, body(1, 3))
    local sacketh = body(AETH_BYTES, SACKETH_BYTES)
    item:add(field.version, sacketh(0, 1))
    local flags = item:add(field.flags, sacketh(0, 1))
    flags:add(field.duplicate, sacketh(0, 1))
    flags:add(field.no_room, sacketh(0, 1))
    item:add(field.trigger, sacketh(1, 3))
    info[#info + 1] = string.format("missing %06x trigger %06x", psn, sacketh(1, 3):uint())
    if sacketh(0, 1):bitfield(0, 4) ~= SACK_VERSION then
        return item:add_proto_expert_info(other_version)
    end
    local bitmap_bytes = body:len() - AETH_BYTES - SACKETH_BYTES
    local received, missing = 0, 1
    if bitmap_bytes > 0 then
        local bitmap = body(AETH_BYTES + SACKETH_BYTES, bitmap_bytes)
        local bits = item:add(field.bitmap, bitmap)
        if bitmap_bytes % 4 ~= 0 or bitmap_bytes > BITMAP_BYTES_MAX then
            return bits:add_proto_expert_info(bad_bitmap)
        end
        received, missing = add_runs(bits, bitmap, psn)
    end
    item:add(field.received, sacketh, received):set_generated()
    item:add(field.missing, sacketh, missing):set_generated()
    info[#info + 1] = string.format("received ahead %d", received)
end

local function add_reth(tree, reth)
    tree:add(field.va, reth(0, 8))
    tree:add(field.rkey, reth(8, 4))
    tree:add(field.len, reth(12, 4))
end

local function add_flush(tree, _, body)
    if body:len() < FETH_BYTES + RETH_BYTES then
        return tree:add_proto_expert_info(too_short)
    end
    local feth = body(0, FETH_BYTES)
    tree:add(field.visible, feth)
    tree:add(field.persistent, feth)
    tree:add(field.selectivity, feth)
    add_reth(tree, body(FETH_BYTES, RETH_BYTES))
end

local function add_atomic_write(tree, _, body)
    if body:len() < RETH_BYTES + 8 then
        return tree:add_proto_expert_info(too_short)
    end
    add_reth(tree, body(0, RETH_BYTES))
    tree:add(field.value, body(RETH_BYTES, 8))
end

local function add_cnp(tree, _, body)
    if body:len() < CNP_RESERVED_BYTES then
        return tree:add_proto_expert_info(too_short)
    end
    tree:add(field.cnp_reserved, body(0, CNP_RESERVED_BYTES))
end

local function add_send(tree, bth, body, info)
    local opcode = bth(0, 1):uint()
    local has_immediate = opcode == 0xE3 or opcode == 0xE5
    local header_bytes = RECVETH_BYTES + (has_immediate and IMMEDIATE_BYTES or 0)
    if body:len() < header_bytes then
        return tree:add_proto_expert_info(too_short)
    end
    tree:add(field.receive, body(0, 4))
    tree:add(field.packet, body(4, 4))
    if has_immediate then
        tree:add(field.immediate, body(RECVETH_BYTES, IMMEDIATE_BYTES))
    end
    if body:len() > header_bytes then
        tree:add(field.payload, body(header_bytes))
    end
    info[#info + 1] = string.format("receive %d packet %d", body(0, 4):uint(), body(4, 4):uint())
end

-- Values above 63 are multiples of 64 PSNs.
local function add_read(tree, bth, _, info)
    local value = bth(8, 1):bitfield(1, 7)
    local pkts = value < 64 and value or (value - 63) * 64
    tree:add(field.preceding_reads, bth(8, 1), pkts)
    info[#info + 1] = string.format("preceding reads %d", pkts)
end

local ADD = { [READ_REQUEST] = add_read, [0x1C] = add_flush, [0x1D] = add_atomic_write, [0x81] = add_cnp, [0xC0] = add_sack }
for opcode = 0xE0, 0xE5 do
    ADD[opcode] = add_send
end

function rocex.dissector(buffer, pinfo, root)
    local opcode_field, length_field = bth_opcode(), udp_length()
    if not opcode_field or not length_field then
        return
    end
    local at, opcode = opcode_field.offset, opcode_field.value
    -- A capture may hold less than the whole packet, and Ethernet padding more.
    local len = math.min(length_field.value - 8, buffer:len() - at)
    if len < BTH_BYTES + ICRC_BYTES then
        return
    end
    local bth = buffer(at, BTH_BYTES)
    local name, has_ecn = OPCODES[opcode], bth(4, 1):bitfield(0, 2) ~= 0
    if opcode == READ_REQUEST and bth(8, 1):bitfield(1, 7) == 0 then
        name = nil
    end
    if not name and not has_ecn then
        return
    end
    local tree = root:add(rocex, buffer(at, len))
    tree:add(field.opcode, bth(0, 1))
    tree:add(field.fecn, bth(4, 1))
    tree:add(field.becn, bth(4, 1))
    if name then
        local info = { name, string.format("QP=0x%06x", bth(5, 3):uint()) }
        ADD[opcode](tree, bth, buffer(at, len - ICRC_BYTES):range(BTH_BYTES), info)
        pinfo.cols.info = table.concat(info, " ")
    end
    tree:add_le(field.icrc, buffer(at + len - ICRC_BYTES, ICRC_BYTES))
end

register_postdissector(rocex)
