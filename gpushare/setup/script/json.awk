# SPDX-License-Identifier: Apache-2.0
# Prints a JSON file without the runtime; the default as in the backup.
# Arguments: the file with an x at its end, and the backup. Exit status 1 if it cannot be read.
function space(at) { while (substr(text, at, 1) ~ /[ \t\r\n]/) at++; return at }
function quoted(at, c) {
    for (at++; (c = substr(text, at, 1)) != "\""; at++) { if (c == "") exit 1; if (c == "\\") at++ }
    return at + 1
}
function value(at, depth, c) { # the position after the value at `at`
    if (substr(text, at, 1) == "\"") return quoted(at)
    if (substr(text, at, 1) !~ /[{[]/) {
        while (substr(text, at, 1) ~ /[-+.0-9a-zA-Z]/) at++
        return at
    }
    do {
        c = substr(text, at, 1)
        if (c == "") exit 1
        if (c == "\"") { at = quoted(at); continue }
        if (c ~ /[{[]/) depth++
        if (c == "}" || c == "]") depth--
        at++
    } while (depth)
    return at
}
# Find a member of the object at `at`: its first byte, its value, the byte after it, the byte after
# the member before it, and the first byte of the next one.
function member(at, name, found, key, start, end, last) {
    count = found = last = 0
    if (substr(text, at, 1) != "{") exit 1
    for (at = space(at + 1); substr(text, at, 1) != "}"; ) {
        if (substr(text, at, 1) != "\"") exit 1
        start = at; end = quoted(at); key = substr(text, start + 1, end - start - 2)
        at = space(end)
        if (substr(text, at, 1) != ":") exit 1
        at = space(at + 1); count++
        if (found && !m_next) m_next = start
        if (key == name) { found = 1; m_start = start; m_value = at; m_last = last; m_next = 0 }
        last = value(at)
        if (last == at) exit 1
        if (key == name) m_end = last
        at = space(last)
        if (substr(text, at, 1) == ",") at = space(at + 1)
    }
    m_close = at
    return found
}
function remove(at, name) {
    if (!member(at, name)) return
    if (m_last) text = substr(text, 1, m_last - 1) substr(text, m_end)
    else if (m_next) text = substr(text, 1, m_start - 1) substr(text, m_next)
    else text = substr(text, 1, at) substr(text, m_close)
}
function default_in(content, kept, found) {
    kept = text; text = content; found = ""
    if (text ~ /[^ \t\r\n]/ && member(space(1), "default-runtime"))
        found = substr(text, m_value, m_end - m_value)
    text = kept
    return found
}
FNR == 1 && NR != 1 { second = 1 }
{ if (second) before = before $0 "\n"; else text = text (NR > 1 ? "\n" : "") $0 }
END {
    sub(/x$/, "", text)
    if (text !~ /[^ \t\r\n]/) exit
    old = default_in(before)
    if (default_in(text) == "\"gpushare\"") {
        member(space(1), "default-runtime")
        if (old == "" || old == "\"gpushare\"") remove(space(1), "default-runtime")
        else text = substr(text, 1, m_value - 1) old substr(text, m_end)
    }
    if (member(space(1), "runtimes")) {
        inner = m_value
        if (member(inner, "gpushare")) {
            if (count == 1) remove(space(1), "runtimes")
            else remove(inner, "gpushare")
        }
    }
    printf "%s", text
}