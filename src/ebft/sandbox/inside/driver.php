<?php
// The tests of one problem, run against a program in another process; see driver.py.
$ebft_job = json_decode(stream_get_contents(STDIN), true);
$GLOBALS['ebft'] = [
    'read' => fopen("php://fd/{$argv[1]}", 'rb'),
    'write' => fopen("php://fd/{$argv[2]}", 'wb'),
    'calls' => 0,
    'ended' => null,
    'reported' => false,
];

function ebft_report($status, $message) {
    if (!$GLOBALS['ebft']['reported']) {
        $GLOBALS['ebft']['reported'] = true;
        $clean = substr((string) $message, 0, 500);
        fwrite(STDOUT, json_encode(['status' => $status, 'message' => $clean], JSON_INVALID_UTF8_SUBSTITUTE));
    }
    exit(0);
}


function ebft_stop($message) {
    $GLOBALS['ebft']['ended'] = $message;
    throw new Exception($message);
}

function ebft_exactly($count) {
    $data = '';
    while (strlen($data) < $count) {
        $got = fread($GLOBALS['ebft']['read'], $count - strlen($data));
        if ($got === false || $got === '') ebft_stop('the program has ended');
        $data .= $got;
    }
    return $data;
}

function ebft_receive() {
    $length = unpack('N', ebft_exactly(4))[1];
    if ($length > 32 * 2 ** 20) ebft_stop('a malformed message');
    $message = @unserialize(ebft_exactly($length), ['allowed_classes' => false, 'max_depth' => 256]);
    if (!is_array($message)) ebft_stop('a malformed message');
    if (array_key_exists('error', $message)) {
        throw new Exception(is_string($message['error']) ? substr($message['error'], 0, 500) : 'an error');
    }
    return $message['value'] ?? null;
}

function ebft_call($args) {
    if ($GLOBALS['ebft']['ended'] !== null) ebft_stop($GLOBALS['ebft']['ended']);
    $GLOBALS['ebft']['calls'] += 1;
    $body = serialize(['args' => $args]);
    if (@fwrite($GLOBALS['ebft']['write'], pack('N', strlen($body)) . $body) === false) {
        ebft_stop('the program has ended');
    }
    fflush($GLOBALS['ebft']['write']);
    return ebft_receive();
}

register_shutdown_function(function () {
    $last = error_get_last();
    ebft_report('failed', $last === null ? 'the tests ended early' : $last['message']);
});
ob_start(function ($text) { return ''; });
try {
    ebft_receive();
    eval("function {$ebft_job['name']}(...\$args) { return ebft_call(\$args); }");
    eval($ebft_job['tests']);
} catch (Throwable $error) {
    ebft_report('failed', $error->getMessage());
}
if ($GLOBALS['ebft']['ended'] !== null) ebft_report('failed', $GLOBALS['ebft']['ended']);
if (!$GLOBALS['ebft']['calls']) ebft_report('error', 'the tests never called the program');
ebft_report('passed', '');
