# bash completion for softhca. The options are those that a command's --help lists.
_softhca()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local cmd=${COMP_WORDS[1]} program= i word words= value
	local -A takes=() # the name of the value that follows the option

	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W 'run env cdi devices doctor explain ps stat trace checkpoint restore migrate suspend --help --version' -- "$cur"))
		return
	fi
	while read -r word; do
		words+=" ${word%%[=[]*}"
		case $word in
		*'[='*'|'*) # one of these may be given: --iwarp[=both|first]
			value=${word#*=}
			for value in $(tr '|' ' ' <<<"${value%]}"); do
				words+=" ${word%%[*}=$value"
			done
			;;
		*'[='*) ;;
		*=*) takes[${word%%=*}]=${word#*=} ;;
		esac
	done < <(softhca "$cmd" --help 2>/dev/null | sed -nE 's/^ {2,6}(-., )*(--[^ ,]+).*/\2/p')

	# From the program's name on, the program's own completion.
	if [[ $cmd == run ]]; then
		words+=' --'
		for ((i = 2; i < COMP_CWORD; i++)); do
			word=${COMP_WORDS[i]}
			if [[ $word == -- ]]; then
				program=$((i + 1))
				break
			elif [[ $word && ${takes[$word]} ]]; then
				((++i))
			elif [[ $word != -* ]]; then
				program=$i
				break
			fi
		done
		if [[ $program ]] && declare -F _command_offset >/dev/null; then
			_command_offset "$program"
			return
		fi
	fi
	case $prev:${takes[$prev]} in
	--addr:*) COMPREPLY=($(compgen -W "$(ip -o addr show up 2>/dev/null |
		awk '{ sub("/.*", "", $4); print $4 }')" -- "$cur")) ;;
	--devices:*) COMPREPLY=($(compgen -W "$(ls /sys/class/net 2>/dev/null)" -- "$cur")) ;;
	--format:*) COMPREPLY=($(compgen -W 'sh github docker json k8s' -- "$cur")) ;;
	--rails:*) COMPREPLY=($(compgen -W '2 4 8' -- "$cur")) ;;
	--names:*) COMPREPLY=($(compgen -W 'mlx5_%d' -- "$cur")) ;;
	--part-id:*) COMPREPLY=($(compgen -W '4129' -- "$cur")) ;;
	--peer:* | -p:*) COMPREPLY=($(compgen -A hostname -- "$cur")) ;;
	*:FILE | *:FILE'['*) compopt -o filenames 2>/dev/null
		COMPREPLY=($(compgen -f -- "$cur")) ;;
	*:DIR) compopt -o filenames 2>/dev/null
		COMPREPLY=($(compgen -d -- "$cur")) ;;
	*:*'|'*) COMPREPLY=($(compgen -W "$(tr '|' ' ' <<<"${takes[$prev]}")" -- "$cur")) ;;
	*:?*) ;; # a number, or what only the user knows
	*)
		if [[ $cmd == explain ]]; then # names, in full or as people say them, in capitals or not
			value=$(softhca explain --list 2>/dev/null | sed -E 'p; s/^(IBV_WC|IBV_EVENT|RDMA_CM_EVENT)_//')
			[[ $cur == *[a-z]* ]] && value=${value,,}
			words+=" $value $(softhca ps 2>/dev/null | sed -nE 's/^process ([0-9]+) .*/\1/p')"
		elif [[ $cmd == ps ]]; then
			words+=" $(softhca ps 2>/dev/null | sed -nE 's/^process ([0-9]+) \(([^ )]+).*/\1 \2/p')"
		fi
		COMPREPLY=($(compgen -W "$words" -- "$cur"))
		[[ $cur == -* ]] && return
		case $cmd in
		run | doctor) COMPREPLY+=($(compgen -c -- "$cur")) ;;
		trace | restore) compopt -o filenames 2>/dev/null
			COMPREPLY+=($(compgen -d -- "$cur")) ;;
		esac
		;;
	esac
}
complete -F _softhca softhca
