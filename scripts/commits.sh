#!/usr/bin/env bash
# Checks the subjects of commits that the upstream's main branch does not have yet.
#
#   scripts/commits.sh
#
# A subject is `area(, area)*: verb object`: areas and verb in lower case, an imperative rather than a pronoun or an
# article, at most 72 characters, no period at the end. Commits up to BASE are older than this rule. Without an
# origin/main the last COMMITS_MAX after BASE are checked; in a shallow clone without either, all that it has, for
# they are younger than BASE. Sources without a history pass, as nothing is there to be checked.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 # characters are counted, not bytes

BASE=9a91e363e6db93a0107555687317e3b73a8abce4
COMMITS_MAX=50
SUBJECT_CHARS_MAX=72

area='[a-z0-9][a-z0-9_./-]*'
FORM="^$area(, $area)*: ([a-z][a-z-]*) [^ ]"
NO_VERB='^(a|an|the|what|who|which|where|when|one|it|its|that|this|these|there|no|not)$'

# reason SUBJECT: what is wrong with it, if anything.
reason() {
    if ! [[ $1 =~ $FORM ]]; then
        echo "is not of the form 'area(, area)*: verb object', areas and verb in lower case"
    elif [[ ${BASH_REMATCH[2]} =~ $NO_VERB ]]; then
        echo "begins with '${BASH_REMATCH[0]##* }' instead of a verb"
    elif [ ${#1} -gt $SUBJECT_CHARS_MAX ]; then
        echo "has ${#1} characters, $SUBJECT_CHARS_MAX are allowed"
    elif [[ $1 == *. ]]; then
        echo "ends in a period"
    fi
}

if ! [ -e .git ]; then
    echo "commits.sh: these sources have no history; 0 subjects checked"
    exit 0
fi

old=()
for commit in origin/main "$BASE"; do
    ! git rev-parse --verify --quiet "$commit^{commit}" >/dev/null || old+=("^$commit")
done
if [ ${#old[@]} -eq 0 ]; then
    if [ "$(git rev-parse --is-shallow-repository)" != true ]; then
        echo "commits.sh: this history has neither origin/main nor $BASE: give BASE a commit that it has" >&2
        exit 1
    fi
    echo "commits.sh: a shallow clone without $BASE: the commits that it has are checked"
fi

log=$(git log --no-merges --max-count="$COMMITS_MAX" --format='%h %s' HEAD "${old[@]}")
checked=0 bad=0
while read -r hash subject; do
    [ -n "$hash" ] || continue
    checked=$((checked + 1))
    wrong=$(reason "$subject")
    [ -n "$wrong" ] || continue
    bad=$((bad + 1))
    printf '%s: %s\n    %s\n' "$hash" "$wrong" "$subject" >&2
done <<<"$log"
if [ "$bad" -gt 0 ]; then
    echo "commits.sh: $bad of $checked subjects are to be worded anew: git rebase --interactive, reword" >&2
    exit 1
fi
echo "commits.sh: $checked subjects checked"
