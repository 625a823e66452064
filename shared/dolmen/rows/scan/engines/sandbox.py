"""Connections of DuckDB that see what is registered with them, and nothing else.

The functions that SQL may call: they compute values from values, or list tables, types and settings.

All others are refused, those of a later DuckDB too, until they are added here: among them are functions that write
files, change settings, run SQL from a text, take addresses in memory, or wait.
"""

from __future__ import annotations

import atexit
import difflib
import json
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from dolmen.errors import InputError
from dolmen.rows.scan.engines.dataframes import optional

if TYPE_CHECKING:
    import duckdb


_SETTINGS = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
"""A query sees the tables that are given to it: no files, no network, no Python variables."""


def open_sandbox(temp_directory: str = "", **settings: str) -> duckdb.DuckDBPyConnection:
    """Opens a connection, whose settings cannot be changed any more. Its time zone is UTC.

    Args:
        temp_directory: where it puts what exceeds memory; nothing may exceed it if empty.
        settings: more settings of DuckDB.

    Raises:
        InputError: DuckDB is not installed.
    """
    engine = optional("duckdb", "dolmen[sql]")
    config = {**_SETTINGS, **settings, "temp_directory": temp_directory}
    connection: duckdb.DuckDBPyConnection = engine.connect(":memory:", config=config)
    connection.execute("SET GLOBAL TimeZone = 'UTC'; SET lock_configuration = true")
    return connection


def join_sandbox(**settings: str) -> duckdb.DuckDBPyConnection:
    """Opens a connection to the sandbox that this process has for these settings, with a transaction begun.

    It sees only what is registered with it, as one of ``open_sandbox`` does, but opens in a tenth of a millisecond
    rather than in 20: making a database takes DuckDB that long. Its statements must make nothing in that database.

    Args:
        settings: settings of DuckDB.

    Raises:
        InputError: DuckDB is not installed.
    """
    errors: Any = optional("duckdb", "dolmen[sql]").Error
    options = tuple(sorted(settings.items()))
    try:
        return _begin(_process_sandbox(os.getpid(), options))
    except errors:  # the database has failed inside, and takes no more
        _process_sandbox.cache_clear()
        return _begin(_process_sandbox(os.getpid(), options))


@cache
def _process_sandbox(process: int, options: tuple[tuple[str, str], ...]) -> duckdb.DuckDBPyConnection:
    """One per process: what a fork inherits, another process may be in the middle of using."""
    atexit.register(_process_sandbox.cache_clear)  # or DuckDB may write to standard error that it is open
    return open_sandbox(**dict(options))


def _begin(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    connection = database.cursor()
    connection.execute("BEGIN TRANSACTION")
    return connection


_AGGREGATES = """
any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last arg_min
arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and bool_or corr
count count_if count_star countif covar_pop covar_samp cume_dist decimal_average dense_rank entropy favg fill first
first_value fsum geomean geometric_mean group_concat grouping grouping_id histogram histogram_exact histogram_values
json_group_array json_group_object json_group_structure kahan_sum kurtosis kurtosis_pop lag last last_value lead list
listagg lttb mad max max_by mean median min min_by mode nth_value ntile percent_rank product quantile quantile_cont
quantile_disc rank rank_dense regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
regr_syy reservoir_quantile row_number sem skewness stddev stddev_pop stddev_samp string_agg sum sum_no_overflow
sumkahan var_pop var_samp variance variant_group_array variant_group_object wavg weighted_avg
"""


_OPERATORS = """
!= !__postfix !~~ !~~* % & && * ** + - -> ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ __between | || ~ ~~ ~~* ~~~
"""


_NUMBERS = """
abs acos acosh add asin asinh atan atan2 atanh binom bit_count cbrt ceil ceiling cos cosh cot decimal_division degrees
divide even exp
factorial fdiv floor fmod gamma gcd get_bit greatest_common_divisor isfinite isinf isnan lcm least_common_multiple
lgamma ln log log10 log2 mod multiply nextafter pi pow power radians random round round_even roundbankers set_bit
setseed sign signbit sin sinh sqrt subtract tan tanh trunc xor
"""


_TEXTS = """
array_to_string array_to_string_comma_default ascii bar base64 bin bit_length bit_position bitstring char_length
character_length chr concat concat_ws contains damerau_levenshtein decode editdist3 encode ends_with format
format_bytes formatreadabledecimalsize formatreadablesize from_base64 from_binary from_hex hamming hash hex
hive_partition_component ilike_escape instr jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme
len length length_grapheme levenshtein like_escape lower lpad ltrim md5 md5_number md5_number_lower md5_number_upper
mismatches nfc_normalize not_ilike_escape not_like_escape octet_length ord overlay parse_dirname parse_dirpath
parse_filename parse_formatted_bytes parse_path path_join pg_size_pretty position prefix printf regexp_escape
regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array
regexp_split_to_table repeat replace reverse right right_grapheme rpad rtrim sha1 sha256 split split_part starts_with
str_split str_split_regex string_split string_split_regex string_to_array strip_accents strlen strpos substr substring
substring_grapheme suffix to_base to_base64 to_binary to_hex translate trim ucase unbin unhex unicode upper url_decode
url_encode
"""


_TIMES = """
age ago century current_date current_localtime current_localtimestamp date_add date_diff date_part date_sub date_trunc
datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms
epoch_ns epoch_us era get_current_time get_current_timestamp hour isodow isoyear julian last_day make_date make_time
make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute month
monthname nanosecond normalized_interval now quarter second strftime strptime time_bucket timetz_byte_comparable
timezone timezone_hour timezone_minute to_centuries to_days to_decades to_hours to_microseconds to_millennia
to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp
try_strptime week weekday weekofyear year yearweek
"""


_NESTED = """
aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct array_dot_product
array_extract array_filter array_grade_up array_has array_has_all array_has_any array_indexof array_inner_product
array_intersect array_length array_negative_dot_product array_negative_inner_product array_pop_back array_pop_front
array_position array_prepend array_push_back array_push_front array_reduce array_resize array_reverse
array_reverse_sort array_select array_slice array_sort array_transform array_unique array_value array_where array_zip
cardinality element_at filter flatten generate_subscripts grade_up list_aggr list_aggregate list_any_value list_append
list_apply list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or
list_cat list_concat list_contains list_cosine_distance list_cosine_similarity list_count list_distance list_distinct
list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all
list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop list_last
list_mad list_max list_median list_min list_mode list_negative_dot_product list_negative_inner_product list_pack
list_position list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_sem
list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform
list_unique list_value list_var_pop list_var_samp list_where list_zip map map_concat map_contains map_contains_entry
map_contains_value map_entries map_extract map_extract_value map_from_entries map_keys map_values reduce row
struct_concat struct_contains struct_extract struct_extract_at struct_has struct_indexof struct_insert struct_keys
struct_pack struct_position struct_update struct_values union_extract union_tag union_value unpivot_list
"""


_JSON = """
array_to_json from_json from_json_strict json json_array json_array_length json_contains json_deep_merge
json_deserialize_sql json_each json_exists json_extract json_extract_path json_extract_path_text json_extract_string
json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize json_object json_pretty json_quote
json_remove json_replace json_serialize_sql json_set json_strip_nulls json_structure json_transform
json_transform_strict json_tree json_type json_valid json_value row_to_json to_json variant_array_length
variant_comparator variant_contains variant_exists variant_extract variant_extract_string variant_keys
variant_normalize variant_type variant_typeof
"""


_OTHERS = """
alias assert_true bitstring_byte_comparable can_cast_implicitly cast_to_type coalesce constant_or_null create_sort_key
enum_code enum_first enum_last enum_range enum_range_boundary equi_width_bins error gen_random_uuid get_type greatest
icu_sort_key if ifnull invoke is_histogram_other_bin least make_type nullif replace_type st_asbinary st_asgeojson
st_astext st_aswkb st_aswkt st_crs st_geomfromgeojson st_geomfromwkb st_intersects_extent st_setcrs switch typeof uuid
uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 vertex_extract
"""


_ROWS = """
generate_series icu_calendar_names pg_timezone_names query_table range repeat_row summary test_all_types
test_vector_types unnest
"""


_CATALOGUE = """
col_description current_catalog current_connection_id current_database current_query current_query_id current_role
current_schema current_schemas current_setting current_transaction_id current_user duckdb_columns duckdb_constraints
duckdb_databases duckdb_dependencies duckdb_extensions duckdb_functions duckdb_indexes duckdb_keywords duckdb_memory
duckdb_optimizers duckdb_schemas duckdb_sequences duckdb_settings duckdb_tables duckdb_temporary_files duckdb_types
duckdb_variables duckdb_views format_pg_type format_type getvariable has_any_column_privilege has_column_privilege
has_database_privilege has_foreign_data_wrapper_privilege has_function_privilege has_language_privilege
has_schema_privilege has_sequence_privilege has_server_privilege has_table_privilege has_tablespace_privilege
in_search_path inet_client_addr inet_client_port inet_server_addr inet_server_port map_to_pg_oid map_type_id_to_pg_oid
obj_description pg_collation_is_visible pg_conf_load_time pg_conversion_is_visible pg_function_is_visible
pg_get_constraintdef pg_get_expr pg_get_viewdef pg_has_role pg_is_other_temp_schema pg_my_temp_schema
pg_opclass_is_visible pg_operator_is_visible pg_opfamily_is_visible pg_postmaster_start_time pg_table_is_visible
pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible pg_type_is_visible
pg_typeof pragma_collations pragma_database_size pragma_platform pragma_show pragma_table_info pragma_user_agent
pragma_version session_user shobj_description txid_current user version
"""


ALLOWED = frozenset(
    " ".join(
        (_AGGREGATES, _OPERATORS, _NUMBERS, _TEXTS, _TIMES, _NESTED, _JSON, _OTHERS, _ROWS, _CATALOGUE)
    ).split()
) | {"is distinct from", "is not distinct from"}  # fmt: skip
"""Names in lower case, as DuckDB's parser gives them."""


_CALL = re.compile(r'"function_name":("(?:[^"\\]|\\.)*")')
"""A call in a parsed statement. No text in it can look so, as quotes in texts are escaped."""


def reject_functions(parsed: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Rejects a statement that calls another function than the allowed ones.

    Args:
        parsed: the statement, from DuckDB's ``json_serialize_sql``. It may nest too deeply for Python to read it.

    Raises:
        InputError: it does. The message names the function.
    """
    for text in sorted(set(_CALL.findall(parsed))):
        name = str(json.loads(text)).lower()
        if name not in ALLOWED:
            found = connection.execute("SELECT 1 FROM duckdb_functions() WHERE lower(function_name) = ?", [name])
            if found.fetchone():
                raise InputError(
                    f"{name}() may not be called here: SQL sees the tables of the database and nothing else, and calls "
                    "only functions that compute values or list tables; for any other, run DuckDB yourself, with "
                    "table.to_duckdb(connection)"
                )
            near = difflib.get_close_matches(name, ALLOWED, 1)
            raise InputError(f"there is no function {name}()" + (f": did you mean {near[0]}()?" if near else ""))
